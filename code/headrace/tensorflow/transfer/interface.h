// What TensorFlow's tf.data service asks of a data transfer protocol, and offers for one to be added.
//
// TensorFlow exports these functions, but ships no header for them. The order of virtual functions and of members
// is that of TensorFlow 2.21, read off libtensorflow_cc.so.2: the table of GrpcDataTransferClient, and the calls in
// WorkerGrpcDataServer::MaybeStartAlternativeDataTransferServer. Whether it holds for the TensorFlow at hand `build.py`
// finds out, by sending batches between processes; where it does not, gRPC carries them.

#ifndef HEADRACE_TRANSFER_INTERFACE_H_
#define HEADRACE_TRANSFER_INTERFACE_H_

#include <cstdint>
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

#endif  // HEADRACE_TRANSFER_INTERFACE_H_
