// A batch as a message: a header, a description of its tensors, then each tensor's bytes as they lie in memory.
//
// Numbers are in the host's byte order: both ends run the same library on x86-64.

#ifndef HEADRACE_TRANSFER_MESSAGE_H_
#define HEADRACE_TRANSFER_MESSAGE_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "connection.h"
#include "interface.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/framework/types.h"

namespace headrace {

// Each end opens with it; another version of this file must have another.
constexpr char kHello[8] = {'h', 'e', 'a', 'd', 'r', 'a', 'c', '1'};
constexpr size_t kMostRequestBytes = 1 << 20;
constexpr size_t kMostDescriptionBytes = 16 << 20;
constexpr uint64_t kMostProtoBytes = INT32_MAX;  // protobuf's own limit

struct Header {
  int32_t code = 0;  // absl::StatusCode; if not OK, the description is the error's text
  uint8_t end_of_sequence = 0, skip = 0, unused[2] = {};
  int64_t element_index = 0;
  uint64_t description_bytes = 0;
};

// Before the tensor's dimensions, int64 each.
struct TensorHeader {
  int32_t dtype = 0;
  int32_t dimensions = 0;
  uint64_t bytes = 0;
  uint64_t as_proto = 0;  // strings and the like travel as a TensorProto
};

// False: the connection is of no more use.
inline bool SendResult(Connection& connection, absl::Status status, const tensorflow::data::GetElementResult& result) {
  Header header;
  std::string description;
  std::vector<std::string> protos(result.components.size());
  std::vector<iovec> parts(2);
  for (size_t i = 0; status.ok() && i < result.components.size(); ++i) {
    const tensorflow::Tensor& tensor = result.components[i];
    TensorHeader about;
    about.dtype = tensor.dtype();
    about.dimensions = tensor.dims();
    if (tensorflow::DataTypeCanUseMemcpy(tensor.dtype())) {
      parts.push_back(Part(tensor.tensor_data().data(), tensor.tensor_data().size()));
    } else {
      tensorflow::TensorProto proto;
      tensor.AsProtoTensorContent(&proto);
      if (!proto.SerializeToString(&protos[i])) status = absl::ResourceExhaustedError("an element of 2 GiB or more");
      about.as_proto = 1;
      parts.push_back(Part(protos[i].data(), protos[i].size()));
    }
    about.bytes = parts.back().iov_len;
    description.append(reinterpret_cast<char*>(&about), sizeof about);
    for (int64_t size : tensor.shape().dim_sizes()) description.append(reinterpret_cast<char*>(&size), sizeof size);
  }
  if (!status.ok()) {
    description = std::string(status.message().substr(0, kMostDescriptionBytes));
    parts.resize(2);
  }
  header.code = static_cast<int32_t>(status.code());
  header.end_of_sequence = result.end_of_sequence;
  header.skip = result.skip;
  header.element_index = result.element_index;
  header.description_bytes = description.size();
  parts[0] = Part(&header, sizeof header);
  parts[1] = Part(description.data(), description.size());
  return connection.Send(std::move(parts));
}

// What became of a message. `kBroken`: the connection is of no more use; `kNonsense`: nor is what came over it.
enum class Arrival { kWhole, kBroken, kNonsense };

inline Arrival ReceiveTensor(Connection& connection, const TensorHeader& about, const tensorflow::TensorShape& shape,
                             tensorflow::Tensor& tensor) {
  if (about.as_proto) {
    if (about.bytes > kMostProtoBytes) return Arrival::kNonsense;
    std::string bytes(about.bytes, '\0');
    if (!connection.Receive(bytes.data(), bytes.size())) return Arrival::kBroken;
    tensorflow::TensorProto proto;
    return proto.ParseFromString(bytes) && tensor.FromProto(proto) ? Arrival::kWhole : Arrival::kNonsense;
  }
  if (!tensorflow::DataType_IsValid(about.dtype)) return Arrival::kNonsense;
  const auto dtype = static_cast<tensorflow::DataType>(about.dtype);
  const auto bytes = static_cast<uint64_t>(shape.num_elements()) * tensorflow::DataTypeSize(dtype);
  if (!tensorflow::DataTypeCanUseMemcpy(dtype) || bytes != about.bytes) return Arrival::kNonsense;
  tensor = tensorflow::Tensor(dtype, shape);
  if (tensor.tensor_data().size() != bytes) return Arrival::kNonsense;  // there was no memory for it
  const bool whole = connection.Receive(const_cast<char*>(tensor.tensor_data().data()), bytes);
  return whole ? Arrival::kWhole : Arrival::kBroken;
}

// The worker's own status is in `status`; if it is OK, `result` is what it sent.
inline Arrival ReceiveResult(Connection& connection, absl::Status& status, tensorflow::data::GetElementResult& result) {
  Header header;
  if (!connection.Receive(&header, sizeof header)) return Arrival::kBroken;
  if (header.description_bytes > kMostDescriptionBytes) return Arrival::kNonsense;
  std::string description(header.description_bytes, '\0');
  if (!connection.Receive(description.data(), description.size())) return Arrival::kBroken;
  status = absl::Status(static_cast<absl::StatusCode>(header.code), header.code ? description : "");
  if (!status.ok()) return Arrival::kWhole;
  std::string_view rest = description;
  const auto take = [&rest](void* into, size_t bytes) {
    if (rest.size() < bytes) return false;
    std::memcpy(into, rest.data(), bytes);
    rest.remove_prefix(bytes);
    return true;
  };
  while (!rest.empty()) {
    TensorHeader about;
    tensorflow::TensorShape shape;
    if (!take(&about, sizeof about)) return Arrival::kNonsense;
    for (int32_t i = 0; i < about.dimensions; ++i) {
      int64_t size;
      if (!take(&size, sizeof size) || !shape.AddDimWithStatus(size).ok()) return Arrival::kNonsense;
    }
    const Arrival arrival = ReceiveTensor(connection, about, shape, result.components.emplace_back());
    if (arrival != Arrival::kWhole) return arrival;
  }
  result.end_of_sequence = header.end_of_sequence;
  result.skip = header.skip;
  result.element_index = header.element_index;
  return Arrival::kWhole;
}

}  // namespace headrace

#endif  // HEADRACE_TRANSFER_MESSAGE_H_
