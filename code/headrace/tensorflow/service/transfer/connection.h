// A TCP connection that carries whole messages: all of the bytes or none, with as few wake-ups as the kernel allows.

#ifndef HEADRACE_TRANSFER_CONNECTION_H_
#define HEADRACE_TRANSFER_CONNECTION_H_

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstddef>
#include <vector>

namespace headrace {

inline iovec Part(const void* data, size_t bytes) { return {const_cast<void*>(data), bytes}; }

inline void SetOption(int fd, int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof value); }

inline int GetOption(int fd, int level, int option) {
  int value = 0;
  socklen_t length = sizeof value;
  getsockopt(fd, level, option, &value, &length);
  return value;
}

// How long a few small steps may take in all, and whether anybody still wants them.
class Patience {
 public:
  Patience(int milliseconds, const std::atomic<bool>* cancelled = nullptr)
      : end_(std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds)), cancelled_(cancelled) {}

  int LeftMs() const {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end_ - std::chrono::steady_clock::now()).count();
    return std::max<int64_t>(left, 0);
  }

  bool IsOver() const { return LeftMs() == 0 || (cancelled_ && *cancelled_); }

  // Until poll's event is there. False, with errno set: it is not, in time.
  bool Await(int fd, short event) const {
    while (true) {
      if (IsOver()) {
        errno = ETIMEDOUT;
        return false;
      }
      pollfd awaited{fd, event, 0};
      const int ready = poll(&awaited, 1, cancelled_ ? std::min(LeftMs(), kSliceMs) : LeftMs());
      if (ready > 0) return true;
      if (ready < 0 && errno != EINTR) return false;
    }
  }

 private:
  static constexpr int kSliceMs = 50;

  const std::chrono::steady_clock::time_point end_;
  const std::atomic<bool>* const cancelled_;
};

// Owns the descriptor of a connected socket.
class Connection {
 public:
  // `silence_s`: how long the other end may leave unread what we send, or, where it owes us something, not answer the
  // kernel's probes. A process that is suspended reads nothing, and its kernel still answers.
  Connection(int fd, int silence_s) : fd_(fd) {
    SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, std::min(silence_s, INT_MAX / 1000) * 1000);
    SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
    SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
    // Kernels before 4.18 do not make the buffer as large as the mark, and would never wake us.
    SetLowWaterMark(kWakeBytes);
    const size_t settled = GetOption(fd, SOL_SOCKET, SO_RCVLOWAT);
    if (static_cast<size_t>(GetOption(fd, SOL_SOCKET, SO_RCVBUF)) >= 2 * settled) wake_bytes_ = settled;
    SetLowWaterMark(1);
  }

  ~Connection() { close(fd_); }

  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // From another thread: whoever sends or receives fails at once.
  void Shutdown() { shutdown(fd_, SHUT_RDWR); }

  // Sends all parts. False: the connection is of no more use.
  bool Send(std::vector<iovec> parts) {
    iovec* next = parts.data();
    size_t left = parts.size();
    while (left > 0) {
      msghdr message{};
      message.msg_iov = next;
      message.msg_iovlen = std::min<size_t>(left, IOV_MAX);
      ssize_t sent = sendmsg(fd_, &message, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) return false;
      for (; left > 0 && static_cast<size_t>(sent) >= next->iov_len; ++next, --left) sent -= next->iov_len;
      if (left > 0) *next = Part(static_cast<char*>(next->iov_base) + sent, next->iov_len - sent);
    }
    return true;
  }

  // Bytes of messages that have come.
  int64_t received() const { return received_; }

  // A few bytes, which the kernel takes whole.
  bool SendAtOnce(const void* data, size_t bytes) {
    return send(fd_, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(bytes);
  }

  // Waits for as long as it takes; how many came of what fits. 0: the connection is of no more use.
  size_t ReceiveSome(void* into, size_t bytes) {
    SetLowWaterMark(1);
    ssize_t got;
    do got = recv(fd_, into, bytes, 0);
    while (got < 0 && errno == EINTR);
    return got > 0 ? got : 0;
  }

  // Receives just `bytes`, all of them in time. False: the connection is of no more use.
  bool Receive(void* into, size_t bytes, const Patience& patience) {
    char* next = static_cast<char*>(into);
    SetLowWaterMark(1);
    while (bytes > 0) {
      if (!patience.Await(fd_, POLLIN)) return false;
      const ssize_t got = recv(fd_, next, bytes, MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN)) return false;
      if (got > 0) next += got, bytes -= got;
    }
    return true;
  }

  // Receives just `bytes`. False: the connection is of no more use.
  //
  // While much is missing, sleeps until a good part of it is there (SO_RCVLOWAT): to wake for each segment that
  // trickles in costs more than the copying. The mark is never above what is still to come, or nothing would wake us;
  // for whatever else a kernel may hold against us, the sleep ends by itself.
  bool Receive(void* into, size_t bytes) {
    char* next = static_cast<char*>(into);
    while (bytes > 0) {
      const bool is_much = bytes > kSmallBytes && wake_bytes_ > 1;
      SetLowWaterMark(is_much ? std::min(bytes, wake_bytes_) : 1);
      if (is_much) {
        pollfd readable{fd_, POLLIN, 0};
        poll(&readable, 1, kLongestSleepMs);
      }
      const ssize_t got = recv(fd_, next, bytes, is_much ? MSG_DONTWAIT : 0);
      if (got > 0) {
        next += got;
        bytes -= got;
        received_ += got;
      } else if (got == 0 || (errno != EINTR && !(is_much && errno == EAGAIN))) {
        return false;
      }
    }
    return true;
  }

 private:
  static constexpr size_t kSmallBytes = 4096;
  static constexpr size_t kWakeBytes = 256 << 10;  // and both ends keep busy
  static constexpr int kLongestSleepMs = 1000;

  void SetLowWaterMark(size_t bytes) {
    if (bytes != mark_) SetOption(fd_, SOL_SOCKET, SO_RCVLOWAT, static_cast<int>(mark_ = bytes));
  }

  const int fd_;
  size_t mark_ = 1;
  size_t wake_bytes_ = 1;
  int64_t received_ = 0;
};

}  // namespace headrace

#endif  // HEADRACE_TRANSFER_CONNECTION_H_
