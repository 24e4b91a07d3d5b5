// Hostile messages for both ends of the transfer, made from true ones. `python -m tests.fuzz` runs this program.
//
// Built with AddressSanitizer and UndefinedBehaviorSanitizer, which end the program at the first error. Each case is
// made from its number alone, so that `transfer NUMBER 1` repeats it.

#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "client.h"
#include "server.h"

namespace {

using headrace::Arrival;
using headrace::Connection;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::data::GetElementResult;

constexpr char kSecret[] = "the job's";
constexpr char kAddress[] = "127.0.0.1:0";
constexpr int kLongestCaseS = 20;

std::atomic<uint64_t> case_number{0};

[[noreturn]] void Fail(const char* why) {
  std::fprintf(stderr, "fuzz: case %llu: %s\n", static_cast<unsigned long long>(case_number), why);
  std::_Exit(1);
}

class Case {
 public:
  explicit Case(uint64_t number) : random_(number) {}

  uint64_t Below(uint64_t limit) { return limit ? random_() % limit : 0; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }

  uint64_t Interesting() {
    static constexpr uint64_t kValues[] = {0, 1, 2, 7, 8, 255, 256, 65535, uint64_t{1} << 20, uint64_t{1} << 31,
                                           uint64_t{1} << 32, uint64_t{1} << 33, uint64_t{1} << 40, uint64_t{1} << 61,
                                           uint64_t{1} << 62, uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{0} - 1};
    return OneIn(3) ? random_() : kValues[Below(std::size(kValues))];
  }

  Tensor AnyTensor() {
    static constexpr tensorflow::DataType kTypes[] = {
        tensorflow::DT_UINT8,  tensorflow::DT_FLOAT,  tensorflow::DT_INT64,     tensorflow::DT_BOOL,
        tensorflow::DT_STRING, tensorflow::DT_BFLOAT16, tensorflow::DT_VARIANT, tensorflow::DT_COMPLEX128};
    TensorShape shape;
    for (uint64_t left = Below(4); left > 0; --left) shape.AddDim(Below(6));
    Tensor tensor(kTypes[Below(std::size(kTypes))], shape);
    if (tensor.dtype() == tensorflow::DT_STRING)
      for (int64_t i = 0; i < tensor.NumElements(); ++i) tensor.flat<tensorflow::tstring>()(i) = Text(Below(40));
    if (tensor.dtype() == tensorflow::DT_VARIANT)
      for (int64_t i = 0; i < tensor.NumElements(); ++i) {
        if (OneIn(4)) continue;  // an empty variant
        Tensor inner(tensorflow::DT_INT64, TensorShape({static_cast<int64_t>(Below(5))}));
        inner.flat<int64_t>().setZero();
        tensor.flat<tensorflow::Variant>()(i) = inner;
      }
    if (tensorflow::DataTypeCanUseMemcpy(tensor.dtype()))
      std::memset(const_cast<char*>(tensor.tensor_data().data()), 1, tensor.tensor_data().size());
    return tensor;
  }

  std::string Text(size_t size) {
    std::string text(size, '\0');
    for (char& each : text) each = static_cast<char>(random_());
    return text;
  }

  // Returns a text with bytes changed, lengths replaced, or pieces cut, repeated or inserted.
  std::string Spoiled(std::string text) {
    for (uint64_t left = 1 + Below(4); left > 0 && !text.empty(); --left) {
      const size_t place = Below(text.size());
      switch (Below(6)) {
        case 0: text[place] ^= static_cast<char>(1 << Below(8)); break;
        case 1: text.resize(place); break;
        case 2: text.insert(place, Text(Below(20))); break;
        case 3: text.insert(place, text.substr(Below(text.size()), Below(64))); break;
        default: {  // numbers are likely at multiples of four or eight
          const size_t size = OneIn(2) ? 8 : 4, at = place / size * size;
          const uint64_t value = Interesting();
          if (at + size <= text.size()) std::memcpy(text.data() + at, &value, size);
        }
      }
    }
    return text;
  }

 private:
  std::mt19937_64 random_;
};

// Returns all bytes that `say` writes to a connection.
std::string Overheard(const std::function<void(Connection&)>& say) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) Fail("no sockets");
  std::string heard;
  std::thread listener([&] {
    char some[65536];
    for (ssize_t got; (got = recv(ends[1], some, sizeof some, 0)) > 0;) heard.append(some, got);
  });
  {
    Connection connection(ends[0], 60);
    say(connection);
  }
  listener.join();
  close(ends[1]);
  return heard;
}

std::string TrueAnswer(Case& any) {
  GetElementResult result;
  for (uint64_t left = any.Below(4); left > 0; --left) result.components.push_back(any.AnyTensor());
  result.end_of_sequence = any.OneIn(2);
  const absl::Status status = any.OneIn(8) ? absl::InternalError(any.Text(any.Below(50))) : absl::OkStatus();
  return Overheard([&](Connection& connection) { headrace::SendResult(connection, status, result); });
}

size_t BytesOf(const Tensor& tensor) {
  size_t bytes = tensor.TotalBytes();
  if (tensor.dtype() == tensorflow::DT_STRING)
    for (int64_t i = 0; i < tensor.NumElements(); ++i) bytes += tensor.flat<tensorflow::tstring>()(i).size();
  return bytes;
}

// Lets a rank receive nonsense from a program in a worker's place.
void Receive(Case& any) {
  std::string answer = TrueAnswer(any);
  const bool is_true = any.OneIn(10);
  if (!is_true) answer = any.Spoiled(answer);
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) Fail("no sockets");
  std::thread speaker([&] {
    for (size_t said = 0; said < answer.size();) {
      const ssize_t sent = send(ends[1], answer.data() + said, answer.size() - said, MSG_NOSIGNAL);
      if (sent <= 0) break;
      said += sent;
    }
    shutdown(ends[1], SHUT_WR);
  });
  {
    Connection connection(ends[0], 60);
    absl::Status status;
    GetElementResult result;
    Arrival arrival = Arrival::kNonsense;
    try {
      arrival = headrace::ReceiveResult(connection, status, result);
    } catch (const std::bad_alloc&) {
    }
    if (is_true && arrival != Arrival::kWhole) Fail("a true answer is not understood");
    size_t bytes = 0;
    for (const Tensor& tensor : result.components) bytes += BytesOf(tensor);
    if (bytes > 2 * headrace::kMostElementBytes) Fail("more memory was taken than an element may have");
  }
  speaker.join();
  close(ends[1]);
}

// A worker's server that counts the elements that it is asked for.
struct Worker {
  Worker() : server(Counted(), kSecret, 60) {
    tensorflow::data::experimental::WorkerConfig config;
    config.set_data_transfer_address(kAddress);
    if (!server.Start(config).ok()) Fail("the server does not start");
  }

  tensorflow::data::DataTransferServer::GetElement Counted() {
    return [this](const tensorflow::data::GetElementRequest*, GetElementResult* result) {
      ++made;
      result->components.emplace_back(Tensor(int64_t{5}));
      return absl::OkStatus();
    };
  }

  std::atomic<int64_t> made{0};
  headrace::Server server;
};

int ConnectTo(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  timeval patience{10, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address)) Fail("the server does not listen");
  return fd;
}

std::string Request() {
  std::string request("\x08\x05", 2);  // task_id: 5
  const uint32_t bytes = request.size();
  return std::string(reinterpret_cast<const char*>(&bytes), sizeof bytes) + request;
}

// Lets an unauthenticated client, or a rank that sends nonsense, talk to a worker.
void Serve(Case& any, int port, bool is_admitted) {
  const int fd = ConnectTo(port);
  headrace::Hello worker;
  if (recv(fd, &worker, sizeof worker, MSG_WAITALL) == sizeof worker) {
    headrace::Answer answer;
    headrace::MakeHello(answer.hello);
    answer.proof = headrace::MakeProof({is_admitted ? kSecret : "another", kAddress}, "rank", worker, answer.hello);
    std::string said(reinterpret_cast<const char*>(&answer), sizeof answer);
    if (!is_admitted && any.OneIn(2)) said = any.Spoiled(said);
    std::string requests;
    for (uint64_t left = any.Below(4); left > 0; --left) requests += Request();
    said += any.OneIn(3) ? requests : any.Spoiled(requests);
    (void)!send(fd, said.data(), said.size(), MSG_NOSIGNAL);
    if (any.OneIn(3)) {
      shutdown(fd, SHUT_WR);
      char some[4096];
      while (recv(fd, some, sizeof some, 0) > 0) {
      }
    }
  }
  close(fd);
}

}  // namespace

extern "C" void __sanitizer_set_death_callback(void (*)());

int main(int argc, char** argv) {
  __sanitizer_set_death_callback([] {
    std::fprintf(stderr, "fuzz: case %llu\n", static_cast<unsigned long long>(case_number));
  });
  const uint64_t first = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 0;
  const double limit = argc > 2 ? std::strtod(argv[2], nullptr) : 1;  // cases; negative: seconds
  Worker of_ranks, of_unauthenticated;
  const auto started = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  };
  uint64_t number = first;
  for (; limit < 0 ? seconds() < -limit : number - first < limit; ++number) {
    case_number = number;
    auto done = std::async(std::launch::async, [&] {
      Case any(number);
      if (any.OneIn(2)) {
        Receive(any);
      } else if (any.OneIn(2)) {
        Serve(any, of_ranks.server.Port(), true);
      } else {
        Serve(any, of_unauthenticated.server.Port(), false);
      }
      if (of_unauthenticated.made) Fail("an unauthenticated client cost an element");
    });
    if (done.wait_for(std::chrono::seconds(kLongestCaseS)) != std::future_status::ready) Fail("hangs");
    if (number % 1000 == 999) {  // after so many clients, a rank of the job is still served
      for (const Worker* worker : {&of_ranks, &of_unauthenticated}) {
        Connection connection(ConnectTo(worker->server.Port()), 60);
        const auto met = headrace::Enter(connection, {kSecret, kAddress}, headrace::Patience(20'000));
        if (met != headrace::Meeting::kAgreed) Fail("a rank of the job is not let in any more");
      }
      std::printf("%llu cases in %.0f s\n", static_cast<unsigned long long>(number - first + 1), seconds());
      std::fflush(stdout);
    }
  }
  std::printf("%llu cases in %.0f s, no finding\n", static_cast<unsigned long long>(number - first), seconds());
  std::fflush(stdout);
  std::_Exit(0);  // TensorFlow's own static objects are not under test
}
