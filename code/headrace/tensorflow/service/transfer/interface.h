// What TensorFlow's tf.data service asks of a data transfer protocol, and offers for one to be added.
//
// TensorFlow exports these functions, but ships no header for them. The order of virtual functions and of members
// is that of TensorFlow 2.21, read off libtensorflow_cc.so.2: the table of GrpcDataTransferClient, and the calls in
// WorkerGrpcDataServer::MaybeStartAlternativeDataTransferServer. So the library is for the versions that `build.py`
// names and for no other: it asks TensorFlow for its version, and where a result ends, before it offers itself.

#ifndef HEADRACE_TRANSFER_INTERFACE_H_
#define HEADRACE_TRANSFER_INTERFACE_H_

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/protobuf/service_config.pb.h"

namespace tensorflow {
namespace data {

// A protobuf message; used through its base class alone.
class GetElementRequest;

struct GetElementResult {
  std::vector<Tensor> components;
  int64_t element_index = 0;
  bool end_of_sequence = false;
  bool skip = false;
};

class DataTransferClient {
 public:
  struct Config {
    std::string_view protocol;
    std::string address;
    // More follows in TensorFlow's own; what is not declared is not copied.
  };
  using Factory = std::function<absl::Status(Config, std::unique_ptr<DataTransferClient>*)>;

  virtual ~DataTransferClient() = default;
  virtual absl::Status GetElement(const GetElementRequest& request, GetElementResult& result) = 0;
  virtual void TryCancel() = 0;
  virtual absl::StatusOr<std::string> GetCompatibilityInfo() const { return std::string(); }
  virtual absl::Status CheckCompatibility(const std::string& /*servers*/) const { return absl::OkStatus(); }

  static void Register(std::string name, Factory factory);
};

class DataTransferServer {
 public:
  using GetElement = std::function<absl::Status(const GetElementRequest*, GetElementResult*)>;
  using Factory = std::function<absl::Status(GetElement, std::shared_ptr<DataTransferServer>*)>;

  virtual ~DataTransferServer() = default;
  virtual absl::Status Start(const experimental::WorkerConfig& config) = 0;
  virtual int Port() const = 0;
  virtual absl::StatusOr<std::string> GetCompatibilityInfo() const { return std::string(); }
  virtual bool FallBackToGrpcAtClientCreationTime() const { return true; }
  virtual bool FallBackToGrpcAtGetElementTime() const { return false; }

  static void Register(std::string name, Factory factory);
};

}  // namespace data
}  // namespace tensorflow

// From TensorFlow's C interface.
extern "C" const char* TF_Version();

#ifndef __x86_64__
#error "how a function returns a structure is known here for x86-64 alone"
#endif
// GetElementResult::Copy as what it is on x86-64: given the place for the copy, then the original.
extern "C" void* HeadraceCopyResult(void* copy, const void* original) __asm__(
    "_ZNK10tensorflow4data16GetElementResult4CopyEv");

namespace headrace {

// Whether a result has the members that we think it has, and ends where we think it ends: TensorFlow writes results
// into ours. Its own copy is looked at, on a page's worth of room.
inline bool ResultIsAsDeclared() {
  using tensorflow::data::GetElementResult;
  constexpr size_t kRoom = 1024;
  constexpr unsigned char kUntouched = 0xa5;
  alignas(16) unsigned char original[kRoom] = {};  // an empty result, whatever else it may have
  alignas(16) unsigned char copy[kRoom];
  std::memset(copy, kUntouched, kRoom);
  auto* from = reinterpret_cast<GetElementResult*>(original);
  from->element_index = 0x0123456789abcdef;
  from->end_of_sequence = true;
  HeadraceCopyResult(copy, original);
  const auto* to = reinterpret_cast<const GetElementResult*>(copy);
  for (size_t i = sizeof(GetElementResult); i < kRoom; ++i)
    if (copy[i] != kUntouched) return false;
  return to->components.empty() && to->element_index == from->element_index && to->end_of_sequence && !to->skip;
}

}  // namespace headrace

#endif  // HEADRACE_TRANSFER_INTERFACE_H_
