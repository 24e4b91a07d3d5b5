// Batches of tf.data service over plain TCP, straight from the worker's tensors into the trainer's.
//
// TensorFlow's own way is one gRPC call for a batch: tensor, message, gRPC's slices, kernel, and all of it back again
// on the trainer, which has no processor to spare for it. Here the kernel copies twice and nobody else does.
// Loading this library adds the protocol "headrace" to those that TensorFlow knows (see interface.h), where TensorFlow
// is the one that the library was built for and the environment has the job's secret.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "client.h"
#include "interface.h"
#include "server.h"

namespace headrace {
namespace {

using tensorflow::data::DataTransferClient;
using tensorflow::data::DataTransferServer;

constexpr char kProtocol[] = "headrace";
constexpr int kStallTimeoutS = 600;  // where the environment does not say otherwise

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// Why this library must not be used in this process; empty where it may.
const std::string problem = [] {
  if (std::strcmp(TF_Version(), HEADRACE_TENSORFLOW))
    return std::string("it is for TensorFlow " HEADRACE_TENSORFLOW ", this is ") + TF_Version();
  if (!ResultIsAsDeclared()) return std::string("this TensorFlow's results have another form");
  if (Variable("HEADRACE_JOB_SECRET").empty()) return std::string("HEADRACE_JOB_SECRET is not set");
  return std::string();
}();

const bool registered = [] {
  if (!problem.empty()) return false;
  const std::string secret = Variable("HEADRACE_JOB_SECRET");
  const int given_s = std::atoi(Variable("HEADRACE_STALL_TIMEOUT_S").c_str());
  // Whoever is silent for so long has hung, and the job's watchdog has said so.
  const int silence_s = 2 * std::clamp(given_s > 0 ? given_s : kStallTimeoutS, 1, 1 << 20);
  DataTransferServer::Register(kProtocol, [=](DataTransferServer::GetElement get_element,
                                              std::shared_ptr<DataTransferServer>* server) {
    *server = std::make_shared<Server>(std::move(get_element), secret, silence_s);
    return absl::OkStatus();
  });
  DataTransferClient::Register(
      kProtocol, [=](DataTransferClient::Config config, std::unique_ptr<DataTransferClient>* client) {
        // Now and not with the first batch: where the port is out of reach, TensorFlow goes on over gRPC.
        absl::Status connected;
        try {
          auto made = std::make_unique<Client>(config.address, secret);
          connected = made->Connect();
          if (connected.ok()) *client = std::move(made);
        } catch (const std::exception& error) {  // no more threads, or no memory
          connected = absl::UnavailableError(error.what());
        }
        if (!connected.ok())
          std::cerr << "batches of this worker travel over gRPC: " << connected.message() << std::endl;
        return connected;
      });
  return true;
}();

}  // namespace
}  // namespace headrace

// How many batches this process has received by the protocol.
extern "C" int64_t headrace_transfer_batches() { return headrace::batches_received; }

// What this process has received from each worker, a line for each; valid until this thread asks again.
extern "C" const char* headrace_transfer_received() {
  static thread_local std::string text;
  text = headrace::received_by_worker.Text();
  return text.c_str();
}

// Why the protocol is not offered in this process; empty where it is.
extern "C" const char* headrace_transfer_problem() { return headrace::problem.c_str(); }
