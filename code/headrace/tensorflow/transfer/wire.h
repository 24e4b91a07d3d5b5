// Bytes over a TCP connection: all of them or none, with as few wake-ups as the kernel allows.

#ifndef HEADRACE_TRANSFER_WIRE_H_
#define HEADRACE_TRANSFER_WIRE_H_

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <vector>

namespace headrace {

constexpr size_t kSmallBytes = 4096;
// Waking for each segment that trickles in costs more than the copying; a quarter MiB also keeps both ends busy.
constexpr size_t kWakeBytes = 256 << 10;

inline void SetOption(int fd, int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof value); }

inline void SetTimeout(int fd, int seconds) {
  timeval timeout{seconds, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
}

// Messages leave at once; a host that is gone without a word is noticed within half a minute.
inline void Tune(int fd) {
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
  SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 30'000);
}

// Sends all parts, which it uses up. False: the connection is of no more use.
inline bool SendAll(int fd, std::vector<iovec>& parts) {
  iovec* next = parts.data();
  size_t left = parts.size();
  while (left > 0) {
    msghdr message{};
    message.msg_iov = next;
    message.msg_iovlen = std::min<size_t>(left, IOV_MAX);
    ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return false;
    for (; left > 0 && static_cast<size_t>(sent) >= next->iov_len; ++next, --left) sent -= next->iov_len;
    if (left > 0) {
      next->iov_base = static_cast<char*>(next->iov_base) + sent;
      next->iov_len -= sent;
    }
  }
  return true;
}

// Receives just `bytes`. False: the connection is of no more use.
//
// While much is missing, poll() sleeps until kWakeBytes are there (SO_RCVLOWAT). The mark is never above what is still
// to come, or nothing would wake us; where the kernel's buffer is smaller than the mark, it wakes us when that is full.
inline bool ReceiveAll(int fd, void* into, size_t bytes) {
  char* next = static_cast<char*>(into);
  size_t mark = 1;
  bool good = true;
  while (bytes > 0 && good) {
    size_t wanted = bytes > kSmallBytes ? std::min(bytes, kWakeBytes) : 1;
    if (wanted != mark) SetOption(fd, SOL_SOCKET, SO_RCVLOWAT, static_cast<int>(mark = wanted));
    if (mark > 1) {
      pollfd readable{fd, POLLIN, 0};
      poll(&readable, 1, -1);
    }
    ssize_t got = recv(fd, next, bytes, 0);
    if (got > 0) {
      next += got;
      bytes -= got;
    } else {
      good = got < 0 && errno == EINTR;
    }
  }
  if (mark != 1) SetOption(fd, SOL_SOCKET, SO_RCVLOWAT, 1);
  return good;
}

}  // namespace headrace

#endif  // HEADRACE_TRANSFER_WIRE_H_
