// The worker's side: hands elements to whoever proves to belong to the job.

#ifndef HEADRACE_TRANSFER_SERVER_H_
#define HEADRACE_TRANSFER_SERVER_H_

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/resource.h>

#include <condition_variable>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "connection.h"
#include "handshake.h"
#include "interface.h"
#include "message.h"

namespace headrace {

inline absl::Status Failed(const std::string& what) {
  return absl::UnavailableError(what + ": " + std::strerror(errno));
}

// A thread for each connection: a consumer has one, and asks for one batch at a time.
class Server : public tensorflow::data::DataTransferServer {
 public:
  // `silence_s`: how long a consumer may leave unread what is sent to it.
  Server(GetElement get_element, std::string secret, int silence_s)
      : get_element_(std::move(get_element)), silence_s_(silence_s), shared_{std::move(secret), ""} {}

  // Workers are processes that are ended by a signal; this is for whoever has one in his own process.
  ~Server() override {
    std::unique_lock<std::mutex> lock(mutex_);
    ended_ = true;
    if (listener_ >= 0) shutdown(listener_, SHUT_RDWR);
    for (auto& [number, peer] : peers_) peer.connection->Shutdown();
    none_left_.wait(lock, [this] { return peers_.empty(); });
    lock.unlock();
    if (acceptor_.joinable()) acceptor_.join();
    if (listener_ >= 0) close(listener_);
  }

  absl::Status Start(const tensorflow::data::experimental::WorkerConfig& config) override {
    rlimit files{};
    getrlimit(RLIMIT_NOFILE, &files);
    most_peers_ = std::min<size_t>(kMostPeers, files.rlim_cur / 2);
    const std::string& address = config.data_transfer_address();
    const std::string host = address.substr(0, address.rfind(':'));
    shared_.address = address;
    // On the interface of the address that trainers are told, where that is one of this host.
    if (!Listen(host, config.data_transfer_port())) {
      std::cerr << host << " is no address that others reach this host by: the transfer listens on all" << std::endl;
      if (!Listen("", config.data_transfer_port()))
        return Failed("cannot listen on port " + std::to_string(config.data_transfer_port()));
    }
    acceptor_ = std::thread([this] { Accept(); });
    return absl::OkStatus();
  }

  int Port() const override { return port_; }

 private:
  // A consumer is unauthenticated until it has proved that it belongs to the job.
  enum class Standing { kUnauthenticated, kAdmitted, kTurnedAway };
  struct Peer {
    std::unique_ptr<Connection> connection;
    std::string source;  // its address
    Standing standing = Standing::kUnauthenticated;
  };

  static constexpr size_t kMostPeers = 4096;
  static constexpr size_t kMostUnauthenticated = 64;
  static constexpr int kAdmissionMs = 5000;
  static constexpr int kRequestMs = 5000;  // from its first byte to its last

  // An empty host stands for all interfaces.
  bool Listen(const std::string& host, int port) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE;
    if (getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &hints, &found)) return false;
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, freeaddrinfo);
    for (const addrinfo* each = found; each; each = each->ai_next) {
      if (IsLoopback(each->ai_addr) && host.compare(0, 4, "127.") != 0 && host != "localhost") continue;
      const int fd = socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC, each->ai_protocol);
      if (fd < 0) continue;
      SetOption(fd, SOL_SOCKET, SO_REUSEADDR, 1);
      if (each->ai_family == AF_INET6) SetOption(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
      sockaddr_storage bound{};
      socklen_t length = sizeof bound;
      if (!bind(fd, each->ai_addr, each->ai_addrlen) && !listen(fd, SOMAXCONN) &&
          !getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &length)) {
        listener_ = fd;
        // At the same place in both kinds of address.
        port_ = ntohs(reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
        return true;
      }
      close(fd);
    }
    return false;
  }

  void Accept() {
    while (true) {
      sockaddr_storage from{};
      socklen_t length = sizeof from;
      const int fd = accept4(listener_, reinterpret_cast<sockaddr*>(&from), &length, SOCK_CLOEXEC);
      // Out of descriptors, or a caller that left again.
      if (fd < 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      std::lock_guard<std::mutex> lock(mutex_);
      if (fd >= 0 && (ended_ || peers_.size() >= most_peers_)) close(fd);
      if (ended_) return;
      if (fd < 0 || peers_.size() >= most_peers_) continue;
      TurnAwayUnauthenticated();
      const int64_t number = ++accepted_;
      auto connection = std::unique_ptr<Connection>(new (std::nothrow) Connection(fd, silence_s_));
      if (!connection) {
        close(fd);
        continue;
      }
      try {
        Peer& peer = peers_[number];
        peer.connection = std::move(connection);
        peer.source = SourceOf(from);
        std::thread([this, number, connection = peer.connection.get()] { Serve(number, *connection); }).detach();
      } catch (const std::exception&) {  // no more threads, or no memory
        peers_.erase(number);
      }
    }
  }

  // Where there are too many: of the address that most of them come from, the one that has been silent longest.
  void TurnAwayUnauthenticated() {
    size_t unauthenticated = 0;
    std::map<std::string, size_t> from;
    for (const auto& [number, peer] : peers_)
      if (peer.standing == Standing::kUnauthenticated) ++unauthenticated, ++from[peer.source];
    if (unauthenticated < kMostUnauthenticated) return;
    const auto fewer = [](const auto& one, const auto& other) { return one.second < other.second; };
    const std::string source = std::max_element(from.begin(), from.end(), fewer)->first;
    for (auto& [number, peer] : peers_) {
      if (peer.standing != Standing::kUnauthenticated || peer.source != source) continue;
      peer.standing = Standing::kTurnedAway;
      peer.connection->Shutdown();
      return;
    }
  }

  static std::string SourceOf(const sockaddr_storage& address) {
    char text[INET6_ADDRSTRLEN] = "";
    const void* place = address.ss_family == AF_INET
                            ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in&>(address).sin_addr)
                            : &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
    inet_ntop(address.ss_family, place, text, sizeof text);
    return text;
  }

  // A name of ours that means ourselves alone, as Debian's installer writes it into /etc/hosts, is nothing to listen on.
  static bool IsLoopback(const sockaddr* address) {
    return address->sa_family == AF_INET &&
           ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24 == 127;
  }

  void Serve(int64_t number, Connection& connection) {
    try {
      if (Admit(connection, shared_, Patience(kAdmissionMs)) == Meeting::kAgreed) {
        {
          std::lock_guard<std::mutex> lock(mutex_);
          peers_[number].standing = Standing::kAdmitted;
        }
        const std::unique_ptr<google::protobuf::Message> request(Prototype()->New());
        while (ServeOne(connection, *request)) {
        }
      }
    } catch (const std::exception&) {  // no memory for it; the consumer finds the connection closed, and asks again
    }
    std::lock_guard<std::mutex> lock(mutex_);
    peers_.erase(number);
    none_left_.notify_all();
  }

  // One request, and its answer. False: the connection is of no more use.
  bool ServeOne(Connection& connection, google::protobuf::Message& request) {
    uint32_t bytes;
    const size_t begun = connection.ReceiveSome(&bytes, sizeof bytes);  // whenever the consumer wants its next batch
    const Patience patience(kRequestMs);
    if (!begun || !connection.Receive(reinterpret_cast<char*>(&bytes) + begun, sizeof bytes - begun, patience))
      return false;
    if (bytes > kMostRequestBytes) return false;
    std::string text(bytes, '\0');
    if (!connection.Receive(text.data(), bytes, patience) || !request.ParseFromString(text)) return false;
    tensorflow::data::GetElementResult result;
    const absl::Status status =
        get_element_(reinterpret_cast<const tensorflow::data::GetElementRequest*>(&request), &result);
    return SendResult(connection, status, result);
  }

  static const google::protobuf::Message* Prototype() {
    static const google::protobuf::Message* const prototype =
        google::protobuf::MessageFactory::generated_factory()->GetPrototype(
            google::protobuf::DescriptorPool::generated_pool()->FindMessageTypeByName(
                "tensorflow.data.GetElementRequest"));
    return prototype;
  }

  const GetElement get_element_;
  const int silence_s_;
  Shared shared_;
  size_t most_peers_ = kMostPeers;
  int listener_ = -1;
  int port_ = 0;
  std::thread acceptor_;
  std::mutex mutex_;
  std::condition_variable none_left_;
  int64_t accepted_ = 0;
  std::map<int64_t, Peer> peers_;  // by the order in which they came; each is used by its own thread
  bool ended_ = false;
};

}  // namespace headrace

#endif  // HEADRACE_TRANSFER_SERVER_H_
