// How both ends of a connection prove that they hold the job's secret, before anything else is said.
//
//   worker → rank    "headrac2", a nonce of the worker's
//   rank → worker    "headrac2", a nonce of the rank's, HMAC(key, "rank" + both nonces + the worker's address)
//   worker → rank    HMAC(key, "worker" + both nonces + the worker's address)
//
// The key is HMAC-SHA256(secret, "headrace transfer"): what is said here is of no use on the control channel. The
// address is HOST:PORT as ranks are told it: what is said to one worker is of no use with another. What follows the
// handshake is neither encrypted nor signed: it keeps out those who can reach the port, not those who are on the wire.

#ifndef HEADRACE_TRANSFER_HANDSHAKE_H_
#define HEADRACE_TRANSFER_HANDSHAKE_H_

#include <cstring>
#include <string>
#include <string_view>

#include "connection.h"
#include "openssl/crypto.h"
#include "openssl/evp.h"
#include "openssl/hmac.h"
#include "openssl/rand.h"

namespace headrace {

// Another version of these files must have another. `handshake.py` says the same.
constexpr char kMagic[8] = {'h', 'e', 'a', 'd', 'r', 'a', 'c', '2'};
constexpr size_t kNonceBytes = 16;
constexpr size_t kProofBytes = 32;

struct Hello {
  char magic[sizeof kMagic];
  unsigned char nonce[kNonceBytes];
};

struct Proof {
  unsigned char bytes[kProofBytes];
};

struct Answer {
  Hello hello;
  Proof proof;
};

inline Proof Hmac(std::string_view key, std::string_view message) {
  Proof proof{};
  unsigned int length = 0;
  HMAC(EVP_sha256(), key.data(), key.size(), reinterpret_cast<const uint8_t*>(message.data()), message.size(),
       proof.bytes, &length);
  return proof;
}

// What both ends know before they meet.
struct Shared {
  std::string secret;
  std::string address;  // the worker's
};

inline Proof MakeProof(const Shared& shared, const char* who, const Hello& worker, const Hello& rank) {
  const Proof key = Hmac(shared.secret, "headrace transfer");
  std::string message(who);
  message.append(reinterpret_cast<const char*>(worker.nonce), kNonceBytes);
  message.append(reinterpret_cast<const char*>(rank.nonce), kNonceBytes);
  message.append(shared.address);
  return Hmac({reinterpret_cast<const char*>(key.bytes), kProofBytes}, message);
}

inline bool IsSame(const Proof& one, const Proof& other) {
  return CRYPTO_memcmp(one.bytes, other.bytes, kProofBytes) == 0;
}

inline bool MakeHello(Hello& hello) {
  std::memcpy(hello.magic, kMagic, sizeof kMagic);
  return RAND_bytes(hello.nonce, kNonceBytes) == 1;
}

// How a handshake ended. `kClosed`: the other end closed the connection, or said nothing in time.
enum class Meeting { kAgreed, kClosed, kAnotherProtocol, kAnotherSecret };

inline Meeting ReceiveHello(Connection& connection, Hello& hello, const Patience& patience) {
  if (!connection.Receive(hello.magic, sizeof kMagic, patience)) return Meeting::kClosed;
  if (std::memcmp(hello.magic, kMagic, sizeof kMagic) != 0) return Meeting::kAnotherProtocol;
  return connection.Receive(hello.nonce, kNonceBytes, patience) ? Meeting::kAgreed : Meeting::kClosed;
}

// The worker's side.
inline Meeting Admit(Connection& connection, const Shared& shared, const Patience& patience) {
  Hello own, other;
  Proof proof;
  if (!MakeHello(own) || !connection.SendAtOnce(&own, sizeof own)) return Meeting::kClosed;
  const Meeting met = ReceiveHello(connection, other, patience);
  if (met != Meeting::kAgreed) return met;
  if (!connection.Receive(&proof, sizeof proof, patience)) return Meeting::kClosed;
  if (!IsSame(proof, MakeProof(shared, "rank", own, other))) return Meeting::kAnotherSecret;
  proof = MakeProof(shared, "worker", own, other);
  return connection.SendAtOnce(&proof, sizeof proof) ? Meeting::kAgreed : Meeting::kClosed;
}

// The rank's side.
inline Meeting Enter(Connection& connection, const Shared& shared, const Patience& patience) {
  Hello other;
  Answer own;
  Proof proof;
  const Meeting met = ReceiveHello(connection, other, patience);
  if (met != Meeting::kAgreed) return met;
  if (!MakeHello(own.hello)) return Meeting::kClosed;
  own.proof = MakeProof(shared, "rank", other, own.hello);
  if (!connection.SendAtOnce(&own, sizeof own) || !connection.Receive(&proof, sizeof proof, patience))
    return Meeting::kClosed;
  return IsSame(proof, MakeProof(shared, "worker", other, own.hello)) ? Meeting::kAgreed : Meeting::kAnotherSecret;
}

}  // namespace headrace

#endif  // HEADRACE_TRANSFER_HANDSHAKE_H_
