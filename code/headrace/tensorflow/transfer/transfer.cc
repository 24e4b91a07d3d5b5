// Batches of tf.data service over plain TCP, straight from the worker's tensors into the trainer's.
//
// TensorFlow's own way is one gRPC call for a batch: tensor, message, gRPC's slices, kernel, and all of it back again
// on the trainer, which has no processor to spare for it. Here the kernel copies twice and nobody else does.
// Loading this library adds the protocol "headrace" to those that TensorFlow knows (see interface.h).

#include <netdb.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <iostream>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "connection.h"
#include "interface.h"
#include "message.h"


namespace headrace {
namespace {

using google::protobuf::Message;
using tensorflow::data::DataTransferClient;
using tensorflow::data::DataTransferServer;
using tensorflow::data::GetElementRequest;
using tensorflow::data::GetElementResult;

constexpr char kProtocol[] = "headrace";
constexpr int kHelloTimeoutS = 5;
constexpr size_t kMostConnections = 4096;

std::atomic<int64_t> batches_received{0};

absl::Status Failed(const std::string& what) { return absl::UnavailableError(what + ": " + std::strerror(errno)); }

bool SendHello(Connection& connection) { return connection.Send({Part(kHello, sizeof kHello)}); }

bool ReceiveHello(Connection& connection) {
  char hello[sizeof kHello];
  return connection.Receive(hello, sizeof hello) && std::memcmp(hello, kHello, sizeof hello) == 0;
}

// A thread for each connection: a consumer has one, and asks for one batch at a time.
class Server : public DataTransferServer {
 public:
  explicit Server(GetElement get_element) : get_element_(std::move(get_element)) {}

  // Workers are processes that are ended by a signal; this is for whoever has one in his own process.
  ~Server() override {
    std::unique_lock<std::mutex> lock(mutex_);
    ended_ = true;
    if (listener_ >= 0) shutdown(listener_, SHUT_RDWR);
    for (Connection* connection : connections_) connection->Shutdown();
    none_left_.wait(lock, [this] { return connections_.empty(); });
    lock.unlock();
    if (acceptor_.joinable()) acceptor_.join();
    if (listener_ >= 0) close(listener_);
  }

  absl::Status Start(const tensorflow::data::experimental::WorkerConfig& config) override {
    listener_ = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool has_ipv6 = listener_ >= 0;
    if (!has_ipv6) listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener_ < 0) return Failed("cannot make a socket");
    SetOption(listener_, SOL_SOCKET, SO_REUSEADDR, 1);
    sockaddr_storage address{};
    auto* any = reinterpret_cast<sockaddr*>(&address);
    if (has_ipv6) SetOption(listener_, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    any->sa_family = has_ipv6 ? AF_INET6 : AF_INET;
    // The port is at the same place in both kinds of address.
    auto& port = reinterpret_cast<sockaddr_in*>(any)->sin_port;
    port = htons(config.data_transfer_port());
    socklen_t length = has_ipv6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    if (bind(listener_, any, length) || listen(listener_, SOMAXCONN) || getsockname(listener_, any, &length))
      return Failed("cannot listen on port " + std::to_string(config.data_transfer_port()));
    port_ = ntohs(port);
    acceptor_ = std::thread([this] { Accept(); });
    return absl::OkStatus();
  }

  int Port() const override { return port_; }

 private:
  void Accept() {
    while (true) {
      const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      // Out of descriptors, or a caller that left again.
      if (fd < 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      std::lock_guard<std::mutex> lock(mutex_);
      if (fd >= 0 && (ended_ || connections_.size() >= kMostConnections)) close(fd);
      if (ended_) return;
      if (fd < 0 || connections_.size() >= kMostConnections) continue;
      auto connection = std::make_unique<Connection>(fd);
      try {
        std::thread([this, connection = connection.get()] { Serve(*connection), Forget(connection); }).detach();
        connections_.insert(connection.release());
      } catch (const std::system_error&) {  // no more threads; the caller is turned away
      }
    }
  }

  void Serve(Connection& connection) {
    SetTimeout(connection.fd(), kHelloTimeoutS);
    if (!ReceiveHello(connection) || !SendHello(connection)) return;
    SetTimeout(connection.fd(), 0);
    const auto* type =
        google::protobuf::DescriptorPool::generated_pool()->FindMessageTypeByName("tensorflow.data.GetElementRequest");
    const std::unique_ptr<Message> request(
        google::protobuf::MessageFactory::generated_factory()->GetPrototype(type)->New());
    std::string text;
    while (true) {
      uint32_t bytes;
      if (!connection.Receive(&bytes, sizeof bytes) || bytes > kMostRequestBytes) return;
      text.resize(bytes);
      if (!connection.Receive(text.data(), bytes) || !request->ParseFromString(text)) return;
      GetElementResult result;
      const absl::Status status = get_element_(reinterpret_cast<const GetElementRequest*>(request.get()), &result);
      if (!SendResult(connection, status, result)) return;
    }
  }

  void Forget(Connection* connection) {
    std::lock_guard<std::mutex> lock(mutex_);
    connections_.erase(connection);
    delete connection;
    none_left_.notify_all();
  }

  const GetElement get_element_;
  int listener_ = -1;
  int port_ = 0;
  std::thread acceptor_;
  std::mutex mutex_;
  std::condition_variable none_left_;
  std::set<Connection*> connections_;  // owned by the threads that serve them
  bool ended_ = false;
};

// A trainer's connection to one worker; made again, on the same port, when the worker has been.
class Client : public DataTransferClient {
 public:
  explicit Client(std::string address) : address_(std::move(address)) {}

  absl::Status Connect() {
    const size_t colon = address_.rfind(':');
    if (colon == std::string::npos) return absl::InvalidArgumentError("no port in " + address_);
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    const std::string host = address_.substr(0, colon), port = address_.substr(colon + 1);
    const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
    if (error) return absl::UnavailableError("cannot resolve " + address_ + ": " + gai_strerror(error));
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, freeaddrinfo);
    std::unique_ptr<Connection> connection;
    for (const addrinfo* each = found; each && !connection && !cancelled_; each = each->ai_next) {
      const int fd = socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC, each->ai_protocol);
      if (fd < 0) continue;
      SetTimeout(fd, kHelloTimeoutS);
      if (connect(fd, each->ai_addr, each->ai_addrlen)) {
        if (errno == EINPROGRESS) errno = ETIMEDOUT;
        close(fd);
      } else {
        connection = std::make_unique<Connection>(fd);
      }
    }
    if (!connection) return cancelled_ ? Cancelled() : Failed("cannot connect to " + address_);
    if (!SendHello(*connection) || !ReceiveHello(*connection))
      return absl::UnavailableError("no answer from " + address_);
    SetTimeout(connection->fd(), 0);
    std::lock_guard<std::mutex> lock(mutex_);
    connection_ = std::move(connection);
    return absl::OkStatus();
  }

  absl::Status GetElement(const GetElementRequest& request, GetElementResult& result) override {
    std::lock_guard<std::mutex> one_at_a_time(call_mutex_);
    if (!connection_) {
      const absl::Status connected = Connect();
      if (!connected.ok()) return connected;
    }
    if (cancelled_) return Cancelled();
    const std::string text = reinterpret_cast<const Message&>(request).SerializeAsString();
    const uint32_t bytes = text.size();
    absl::Status status;
    auto arrival = Arrival::kBroken;
    if (connection_->Send({Part(&bytes, sizeof bytes), Part(text.data(), bytes)}))
      arrival = ReceiveResult(*connection_, status, result);
    if (arrival == Arrival::kWhole) {
      ++batches_received;
      return status;
    }
    result = GetElementResult();
    std::lock_guard<std::mutex> lock(mutex_);
    connection_.reset();
    if (cancelled_) return Cancelled();
    if (arrival == Arrival::kNonsense) return absl::DataLossError("what came from " + address_ + " makes no sense");
    // TensorFlow tries again what was unavailable.
    return absl::UnavailableError("lost the connection to the worker at " + address_);
  }

  void TryCancel() override {
    std::lock_guard<std::mutex> lock(mutex_);
    cancelled_ = true;
    if (connection_) connection_->Shutdown();
  }

 private:
  static absl::Status Cancelled() { return absl::CancelledError("the reader has ended"); }

  const std::string address_;
  std::mutex call_mutex_;
  std::mutex mutex_;  // of what another thread may shut down
  std::unique_ptr<Connection> connection_;
  std::atomic<bool> cancelled_{false};
};

const bool registered = [] {
  DataTransferServer::Register(
      kProtocol, [](DataTransferServer::GetElement get_element, std::shared_ptr<DataTransferServer>* server) {
        *server = std::make_shared<Server>(std::move(get_element));
        return absl::OkStatus();
      });
  DataTransferClient::Register(
      kProtocol, [](DataTransferClient::Config config, std::unique_ptr<DataTransferClient>* client) {
        // Now and not with the first batch: where the port is out of reach, TensorFlow goes on over gRPC.
        const std::string address = config.address;
        auto made = std::make_unique<Client>(address);
        const absl::Status connected = made->Connect();
        if (connected.ok()) {
          *client = std::move(made);
        } else {
          std::cerr << "batches of this worker travel over gRPC: " << connected.message() << std::endl;
        }
        return connected;
      });
  return true;
}();

}  // namespace
}  // namespace headrace

// How many batches this process has received by the protocol.
extern "C" int64_t headrace_transfer_batches() { return headrace::batches_received; }
