// The rank's side: a connection to one worker; made again, on the same port, when the worker has been.

#ifndef HEADRACE_TRANSFER_CLIENT_H_
#define HEADRACE_TRANSFER_CLIENT_H_

#include <fcntl.h>
#include <netdb.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "google/protobuf/message.h"
#include "connection.h"
#include "handshake.h"
#include "interface.h"
#include "message.h"

namespace headrace {

// All answers of all workers: a sign of life.
inline std::atomic<int64_t> batches_received{0};

// What has come to this process from one worker.
struct Received {
  std::atomic<int64_t> batches{0}, bytes{0};
};

// By the workers' addresses; what has an entry keeps it.
class ReceivedByWorker {
 public:
  Received& From(const std::string& address) {
    std::lock_guard<std::mutex> lock(mutex_);
    return workers_[address];
  }

  // A line for each worker: address, batches, bytes.
  std::string Text() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::string text;
    for (const auto& [address, received] : workers_)
      text += address + ' ' + std::to_string(received.batches) + ' ' + std::to_string(received.bytes) + '\n';
    return text;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, Received> workers_;
};

inline ReceivedByWorker received_by_worker;

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// The addresses of a name, or why there are none. The system's resolver cannot be interrupted; after a while
// it is left to itself.
inline absl::StatusOr<Addresses> Resolve(const std::string& host, const std::string& port, int patience_ms) {
  struct Lookup {
    std::mutex mutex;
    std::condition_variable done;
    bool is_done = false;
    int error = 0;
    Addresses found{nullptr, freeaddrinfo};
  };
  const auto lookup = std::make_shared<Lookup>();
  std::thread([lookup, host, port] {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
    std::lock_guard<std::mutex> lock(lookup->mutex);
    lookup->error = error;
    if (!error) lookup->found.reset(found);
    lookup->is_done = true;
    lookup->done.notify_one();
  }).detach();
  std::unique_lock<std::mutex> lock(lookup->mutex);
  if (!lookup->done.wait_for(lock, std::chrono::milliseconds(patience_ms), [&] { return lookup->is_done; }))
    return absl::UnavailableError("cannot resolve " + host + " within " + std::to_string(patience_ms) + " ms");
  if (lookup->error) return absl::UnavailableError("cannot resolve " + host + ": " + gai_strerror(lookup->error));
  return std::move(lookup->found);
}

class Client : public tensorflow::data::DataTransferClient {
 public:
  Client(const std::string& address, const std::string& secret)
      : shared_{secret, address}, received_(received_by_worker.From(address)) {}

  // Within a second in all: TensorFlow holds a lock meanwhile that whoever ends the reader needs.
  absl::Status Connect() { return Connect(Patience(kConnectMs, &cancelled_)); }

  absl::Status GetElement(const tensorflow::data::GetElementRequest& request,
                          tensorflow::data::GetElementResult& result) override {
    std::lock_guard<std::mutex> one_at_a_time(call_mutex_);
    try {
      return Ask(reinterpret_cast<const google::protobuf::Message&>(request).SerializeAsString(), result);
    } catch (const std::exception& error) {  // TensorFlow's threads are built without exceptions
      Forget(result);
      return absl::ResourceExhaustedError("a batch from " + shared_.address + ": " + error.what());
    }
  }

  void TryCancel() override {
    std::lock_guard<std::mutex> lock(mutex_);
    cancelled_ = true;
    if (connection_) connection_->Shutdown();
  }

 private:
  static constexpr int kConnectMs = 1000;
  static constexpr int kAgainMs = 20;
  static constexpr int kSilenceS = 60;  // a request is small, so that it is taken even by a worker that is suspended

  absl::Status Connect(const Patience& patience) {
    const size_t colon = shared_.address.rfind(':');
    if (colon == std::string::npos) return absl::InvalidArgumentError("no port in " + shared_.address);
    const auto addresses = Resolve(shared_.address.substr(0, colon), shared_.address.substr(colon + 1), patience.LeftMs());
    if (!addresses.ok()) return addresses.status();
    std::unique_ptr<Connection> connection;
    for (const addrinfo* each = addresses->get(); each && !connection; each = each->ai_next)
      connection = ConnectTo(*each, patience);
    if (cancelled_) return Cancelled();
    if (!connection) return absl::UnavailableError("cannot connect to " + shared_.address + ": " + std::strerror(errno));
    switch (Enter(*connection, shared_, patience)) {
      case Meeting::kAgreed: break;
      case Meeting::kAnotherProtocol: return absl::UnavailableError(shared_.address + " speaks another protocol");
      case Meeting::kAnotherSecret: return absl::UnavailableError(shared_.address + " does not hold this job's secret");
      case Meeting::kClosed:  // by a worker that is ending, or that had too many unauthenticated clients
        if (patience.IsOver()) return cancelled_ ? Cancelled() : absl::UnavailableError(shared_.address + " lets nobody in");
        std::this_thread::sleep_for(std::chrono::milliseconds(kAgainMs));
        return Connect(patience);
    }
    std::lock_guard<std::mutex> lock(mutex_);
    connection_ = std::move(connection);
    return absl::OkStatus();
  }

  std::unique_ptr<Connection> ConnectTo(const addrinfo& address, const Patience& patience) {
    const int fd = socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, address.ai_protocol);
    if (fd < 0) return nullptr;
    auto connection = std::make_unique<Connection>(fd, kSilenceS);
    if (connect(fd, address.ai_addr, address.ai_addrlen)) {
      if (errno != EINPROGRESS || !patience.Await(fd, POLLOUT)) return nullptr;
      errno = GetOption(fd, SOL_SOCKET, SO_ERROR);
      if (errno) return nullptr;
    }
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    return connection;
  }

  absl::Status Ask(const std::string& text, tensorflow::data::GetElementResult& result) {
    if (!connection_) {
      const absl::Status connected = Connect();
      if (!connected.ok()) return connected;
    }
    if (cancelled_) return Cancelled();
    const uint32_t bytes = text.size();
    absl::Status status;
    auto arrival = Arrival::kBroken;
    const int64_t before = connection_->received();
    if (connection_->Send({Part(&bytes, sizeof bytes), Part(text.data(), bytes)}))
      arrival = ReceiveResult(*connection_, status, result);
    if (arrival == Arrival::kWhole) {
      ++batches_received;
      received_.bytes += connection_->received() - before;
      if (status.ok() && !result.end_of_sequence && !result.skip) ++received_.batches;
      return status;
    }
    Forget(result);
    if (cancelled_) return Cancelled();
    if (arrival == Arrival::kNonsense) return absl::DataLossError("what came from " + shared_.address + " makes no sense");
    // TensorFlow tries again what was unavailable.
    return absl::UnavailableError("lost the connection to the worker at " + shared_.address);
  }

  void Forget(tensorflow::data::GetElementResult& result) {
    result.components.clear();
    result.element_index = 0;
    result.end_of_sequence = result.skip = false;
    std::lock_guard<std::mutex> lock(mutex_);
    connection_.reset();
  }

  static absl::Status Cancelled() { return absl::CancelledError("the reader has ended"); }

  const Shared shared_;
  Received& received_;
  std::mutex call_mutex_;
  std::mutex mutex_;  // of what another thread may shut down
  std::unique_ptr<Connection> connection_;
  std::atomic<bool> cancelled_{false};
};

}  // namespace headrace

#endif  // HEADRACE_TRANSFER_CLIENT_H_
