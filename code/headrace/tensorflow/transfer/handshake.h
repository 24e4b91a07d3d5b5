// How both ends of a connection prove that they hold the job's secret, before anything else is said.
//
//   worker → rank    "headrac2", a nonce of the worker's
//   rank → worker    "headrac2", a nonce of the rank's, HMAC(key, "rank" + both nonces)
//   worker → rank    HMAC(key, "worker" + both nonces)
//
// The key is HMAC-SHA256(secret, "headrace transfer"): what is said here is of no use on the control channel. What
// follows the handshake is neither encrypted nor signed: it keeps out who can reach the port, not who is on the wire.

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
  Proof proof;
  unsigned int length = 0;
  HMAC(EVP_sha256(), key.data(), key.size(), reinterpret_cast<const uint8_t*>(message.data()), message.size(),
       proof.bytes, &length);
  return proof;
}

inline Proof MakeProof(std::string_view secret, const char* who, const Hello& worker, const Hello& rank) {
  const Proof key = Hmac(secret, "headrace transfer");
  std::string message(who);
  message.append(reinterpret_cast<const char*>(worker.nonce), kNonceBytes);
  message.append(reinterpret_cast<const char*>(rank.nonce), kNonceBytes);
  return Hmac({reinterpret_cast<const char*>(key.bytes), kProofBytes}, message);
}

inline bool IsSame(const Proof& one, const Proof& other) {
  return CRYPTO_memcmp(one.bytes, other.bytes, kProofBytes) == 0;
}

inline bool MakeHello(Hello& hello) {
  std::memcpy(hello.magic, kMagic, sizeof kMagic);
  return RAND_bytes(hello.nonce, kNonceBytes) == 1;
}

inline bool ReceiveHello(Connection& connection, Hello& hello, const Patience& patience) {
  return connection.Receive(hello.magic, sizeof kMagic, patience) &&
         std::memcmp(hello.magic, kMagic, sizeof kMagic) == 0 &&
         connection.Receive(hello.nonce, kNonceBytes, patience);
}

// The worker's side. False: the other end has not proved that it holds the secret.
inline bool Admit(Connection& connection, std::string_view secret, const Patience& patience) {
  Hello own, other;
  Proof proof;
  if (!MakeHello(own) || !connection.SendAtOnce(&own, sizeof own)) return false;
  if (!ReceiveHello(connection, other, patience) || !connection.Receive(&proof, sizeof proof, patience)) return false;
  if (!IsSame(proof, MakeProof(secret, "rank", own, other))) return false;
  proof = MakeProof(secret, "worker", own, other);
  return connection.SendAtOnce(&proof, sizeof proof);
}

// The rank's side.
inline bool Enter(Connection& connection, std::string_view secret, const Patience& patience) {
  Hello other;
  Answer own;
  Proof proof;
  if (!ReceiveHello(connection, other, patience) || !MakeHello(own.hello)) return false;
  own.proof = MakeProof(secret, "rank", other, own.hello);
  if (!connection.SendAtOnce(&own, sizeof own) || !connection.Receive(&proof, sizeof proof, patience)) return false;
  return IsSame(proof, MakeProof(secret, "worker", other, own.hello));
}

}  // namespace headrace

#endif  // HEADRACE_TRANSFER_HANDSHAKE_H_
