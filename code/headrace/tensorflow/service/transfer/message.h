// A batch as a message: a header, a description of its tensors, then each tensor's bytes as they lie in memory.
//
// Numbers are in the host's byte order: both ends run the same library on x86-64. What is announced is never believed:
// lengths are checked before memory is taken for them, and memory that is not a tensor's own grows with what arrives.

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
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace headrace {

constexpr size_t kMostRequestBytes = 1 << 20;
constexpr size_t kMostDescriptionBytes = 16 << 20;
constexpr uint64_t kMostProtoBytes = INT32_MAX;  // protobuf's own limit
#ifndef HEADRACE_MOST_ELEMENT_BYTES
#define HEADRACE_MOST_ELEMENT_BYTES (uint64_t{8} << 30)
#endif
constexpr uint64_t kMostElementBytes = HEADRACE_MOST_ELEMENT_BYTES;
constexpr char kTooLarge[] = "a batch of more than 8 GiB, or text of 2 GiB, does not travel: make the batches smaller";
constexpr char kForeign[] =
    "a batch holds something else than tensors, ragged and sparse ones: give data.distribute data_transfer_protocol='grpc'";

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

// What an element may still take of the memory that one is allowed.
class Budget {
 public:
  // False: `count` things of `size` bytes are more than is left.
  bool Take(uint64_t count, uint64_t size) {
    if (size > 0 && count > left_ / size) return false;
    left_ -= count * size;
    return true;
  }

 private:
  uint64_t left_ = kMostElementBytes;
};

// What a variant may hold: a tensor (sparse tensors are three), a ragged one, or nothing. TensorFlow decodes others too,
// and takes some at their word.
inline bool MayTravel(const tensorflow::VariantTensorDataProto& variant) {
  if (variant.type_name() == "tensorflow::Tensor") return variant.tensors_size() == 1;
  if (variant.type_name() == "RaggedTensorVariant") return variant.tensors_size() >= 1;
  return variant.type_name().empty() && variant.tensors_size() == 0;
}

inline bool MayTravel(const tensorflow::TensorProto& proto) {
  if (proto.dtype() == tensorflow::DT_STRING) return true;
  const auto& variants = proto.variant_val();
  return proto.dtype() == tensorflow::DT_VARIANT &&
         std::all_of(variants.begin(), variants.end(), [](const auto& variant) { return MayTravel(variant); });
}

// Whether a tensor's message holds a value for each element that its shape announces, within the budget. TensorFlow takes
// memory for the shape first, and repeats the last value where some are missing; what `SendResult` makes has all of them.
inline bool IsComplete(const tensorflow::TensorProto& proto, Budget& budget, int depth = 0) {
  constexpr int kDeepest = 8;
  tensorflow::TensorShape shape;
  if (depth > kDeepest || !tensorflow::TensorShape::BuildTensorShape(proto.tensor_shape(), &shape).ok()) return false;
  const auto elements = static_cast<uint64_t>(shape.num_elements());
  const bool has_numbers = tensorflow::DataTypeCanUseMemcpy(proto.dtype());
  const uint64_t size = has_numbers                                ? tensorflow::DataTypeSize(proto.dtype())
                        : proto.dtype() == tensorflow::DT_STRING ? sizeof(tensorflow::tstring)
                                                                 : sizeof(tensorflow::Variant);
  const uint64_t values = has_numbers ? proto.ByteSizeLong() : proto.string_val_size() + proto.variant_val_size();
  if (elements > values || !budget.Take(elements, size)) return false;
  if (!has_numbers && (!MayTravel(proto) || !proto.tensor_content().empty())) return false;  // content hides tensors
  for (const auto& variant : proto.variant_val())
    for (const auto& tensor : variant.tensors())
      if (!IsComplete(tensor, budget, depth + 1)) return false;
  // A tensor in a variant that cannot be made is none to TensorFlow's decoder, which takes the first of none.
  return depth == 0 || tensorflow::Tensor().FromProto(proto);
}

// False: the connection is of no more use.
inline bool SendResult(Connection& connection, absl::Status status, const tensorflow::data::GetElementResult& result) {
  Header header;
  Budget budget;
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
      tensor.AsProtoField(&proto);
      if (!proto.SerializeToString(&protos[i])) status = absl::ResourceExhaustedError(kTooLarge);
      if (!MayTravel(proto)) {
        status = absl::UnimplementedError(kForeign);
      } else if (!IsComplete(proto, budget)) {
        status = absl::ResourceExhaustedError(kTooLarge);
      }
      about.as_proto = 1;
      parts.push_back(Part(protos[i].data(), protos[i].size()));
    }
    about.bytes = parts.back().iov_len;
    if (!budget.Take(about.bytes, 1)) status = absl::ResourceExhaustedError(kTooLarge);
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

// Text of a length that was announced: memory is taken for it as it comes.
inline bool ReceiveText(Connection& connection, size_t bytes, std::string& text) {
  constexpr size_t kPiece = 4 << 20;
  text.clear();
  while (text.size() < bytes) {
    const size_t has = text.size(), piece = std::min(bytes - has, kPiece);
    text.resize(has + piece);
    if (!connection.Receive(text.data() + has, piece)) return false;
  }
  return true;
}

inline Arrival ReceiveTensor(Connection& connection, const TensorHeader& about, const tensorflow::TensorShape& shape,
                             Budget& budget, tensorflow::Tensor& tensor) {
  if (about.as_proto) {
    if (about.bytes > kMostProtoBytes || !budget.Take(about.bytes, 1)) return Arrival::kNonsense;
    std::string bytes;
    if (!ReceiveText(connection, about.bytes, bytes)) return Arrival::kBroken;
    tensorflow::TensorProto proto;
    const bool good = proto.ParseFromString(bytes) && IsComplete(proto, budget) && tensor.FromProto(proto);
    return good ? Arrival::kWhole : Arrival::kNonsense;
  }
  if (!tensorflow::DataType_IsValid(about.dtype)) return Arrival::kNonsense;
  const auto dtype = static_cast<tensorflow::DataType>(about.dtype);
  if (!tensorflow::DataTypeCanUseMemcpy(dtype)) return Arrival::kNonsense;
  const uint64_t elements = shape.num_elements(), size = tensorflow::DataTypeSize(dtype);
  if (!budget.Take(elements, size) || elements * size != about.bytes) return Arrival::kNonsense;
  tensor = tensorflow::Tensor(dtype, shape);
  if (!tensor.IsInitialized()) throw std::bad_alloc();
  const bool whole = connection.Receive(const_cast<char*>(tensor.tensor_data().data()), about.bytes);
  return whole ? Arrival::kWhole : Arrival::kBroken;
}

// The worker's own status is in `status`; if it is OK, `result` is what it sent. May throw std::bad_alloc.
inline Arrival ReceiveResult(Connection& connection, absl::Status& status, tensorflow::data::GetElementResult& result) {
  Header header;
  Budget budget;
  if (!connection.Receive(&header, sizeof header)) return Arrival::kBroken;
  if (header.description_bytes > kMostDescriptionBytes) return Arrival::kNonsense;
  std::string description;
  if (!ReceiveText(connection, header.description_bytes, description)) return Arrival::kBroken;
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
    if (!take(&about, sizeof about) || about.dimensions > tensorflow::TensorShape::MaxDimensions())
      return Arrival::kNonsense;
    for (int32_t i = 0; i < about.dimensions; ++i) {
      int64_t size;
      if (!take(&size, sizeof size) || !shape.AddDimWithStatus(size).ok()) return Arrival::kNonsense;
    }
    const Arrival arrival = ReceiveTensor(connection, about, shape, budget, result.components.emplace_back());
    if (arrival != Arrival::kWhole) return arrival;
  }
  result.end_of_sequence = header.end_of_sequence;
  result.skip = header.skip;
  result.element_index = header.element_index;
  return Arrival::kWhole;
}

}  // namespace headrace

#endif  // HEADRACE_TRANSFER_MESSAGE_H_
