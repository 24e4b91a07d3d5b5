"""How two ends of a connection prove to each other that they hold the job's secret, before anything else is said.

    server → client    magic, a nonce of the server's
    client → server    magic, a nonce of the client's, HMAC(key, "rank" + both nonces + the server's address)
    server → client    HMAC(key, "worker" + both nonces + the server's address)

The key is HMAC-SHA256(secret, purpose): what is said for one purpose is of no use for another. The address is HOST:PORT
as clients are told it: what is said to one server is of no use with another. What follows is neither encrypted nor
signed: this keeps out those who can reach the port, not those who are on the wire.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import time
from dataclasses import dataclass

NONCE_BYTES = 16
PROOF_BYTES = 32
LIMIT_S = 5.0
"""For each side's handshake as a whole."""


@dataclass(frozen=True)
class Handshake:
    """One protocol's handshake.

    Args:
        magic: eight bytes; another version of the protocol has another.
        purpose: what the key is for.
    """

    magic: bytes
    purpose: bytes

    def proof(self, secret: str, who: str, server_nonce: bytes, client_nonce: bytes, address: str) -> bytes:
        """What `who` (rank or worker) says to prove that it holds the secret; the address is the server's."""
        key = hmac.digest(secret.encode(), self.purpose, hashlib.sha256)
        return hmac.digest(key, who.encode() + server_nonce + client_nonce + address.encode(), hashlib.sha256)

    def enter(self, address: str, secret: str, limit_s: float = LIMIT_S) -> socket.socket:
        """A connection to the server at `HOST:PORT` that will serve it. Raises `OSError`."""
        deadline = time.monotonic() + limit_s
        host, _, port = address.rpartition(":")
        connection = socket.create_connection((host, int(port)), limit_s)
        try:
            hello = receive(connection, len(self.magic) + NONCE_BYTES, deadline)
            if not hello.startswith(self.magic):
                raise OSError("something else answers")
            server, own = hello[len(self.magic) :], secrets.token_bytes(NONCE_BYTES)
            connection.sendall(self.magic + own + self.proof(secret, "rank", server, own, address))
            proof = self.proof(secret, "worker", server, own, address)
            if not hmac.compare_digest(receive(connection, PROOF_BYTES, deadline), proof):
                raise OSError("it does not hold this job's secret")
        except BaseException:
            connection.close()
            raise
        return connection

    def admit(self, connection: socket.socket, address: str, secret: str, limit_s: float = LIMIT_S) -> None:
        """The server's side. Raises `OSError` for who does not hold the secret."""
        deadline = time.monotonic() + limit_s
        own = secrets.token_bytes(NONCE_BYTES)
        connection.settimeout(limit_s)
        connection.sendall(self.magic + own)
        answer = receive(connection, len(self.magic) + NONCE_BYTES, deadline)
        if not answer.startswith(self.magic):
            raise OSError("another protocol")
        client = answer[len(self.magic) :]
        given = receive(connection, PROOF_BYTES, deadline)
        if not hmac.compare_digest(given, self.proof(secret, "rank", own, client, address)):
            raise OSError("another secret")
        connection.sendall(self.proof(secret, "worker", own, client, address))


def receive(connection: socket.socket, size: int, deadline: float) -> bytes:
    """Exactly so many bytes. Raises `OSError` when they do not come by then (monotonic seconds)."""
    received = b""
    while len(received) < size:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("no answer in time")
        connection.settimeout(left_s)
        more = connection.recv(size - len(received))
        if not more:
            raise OSError("something else answers, or nothing")
        received += more
    return received
