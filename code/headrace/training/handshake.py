"""A handshake in which both ends of a connection prove that they hold the job's secret, before any other message.

    server → client    magic, the server's nonce
    client → server    magic, the client's nonce, HMAC(key, "rank" + both nonces + the server's address)
    server → client    HMAC(key, "worker" + both nonces + the server's address)

The key is HMAC-SHA256(secret, purpose), so a proof for one purpose is useless for another. The address is the server's
HOST:PORT as clients know it, so a proof for one server is useless with another. Later messages are neither encrypted
nor signed: the handshake keeps out clients that can reach the port, not attackers who can read or change the traffic.
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
"""Seconds that each side allows for the whole handshake."""


@dataclass(frozen=True)
class Handshake:
    """The handshake of one protocol, for both ends of a connection.

    Args:
        magic: eight bytes that identify the protocol and its version.
        purpose: bytes that identify the key's use.
    """

    magic: bytes
    purpose: bytes

    def proof(self, secret: str, who: str, server_nonce: bytes, client_nonce: bytes, address: str) -> bytes:
        """Return the bytes that prove that `who` (`rank` or `worker`) holds the secret.

        Args:
            address: HOST:PORT of the server. Rank and worker both use it in their proofs.
        """
        key = hmac.digest(secret.encode(), self.purpose, hashlib.sha256)
        return hmac.digest(key, who.encode() + server_nonce + client_nonce + address.encode(), hashlib.sha256)

    def enter(self, address: str, secret: str) -> socket.socket:
        """Connect to the server at `address` (HOST:PORT), authenticate, and return the connection. Raises `OSError`."""
        deadline = time.monotonic() + LIMIT_S
        host, _, port = address.rpartition(":")
        connection = socket.create_connection((host, int(port)), LIMIT_S)
        try:
            hello = receive(connection, len(self.magic) + NONCE_BYTES, deadline)
            if not hello.startswith(self.magic):
                raise OSError("another program listens on this port")
            server, own = hello[len(self.magic) :], secrets.token_bytes(NONCE_BYTES)
            connection.sendall(self.magic + own + self.proof(secret, "rank", server, own, address))
            proof = self.proof(secret, "worker", server, own, address)
            if not hmac.compare_digest(receive(connection, PROOF_BYTES, deadline), proof):
                raise OSError("the server does not hold this job's secret")
        except BaseException:
            connection.close()
            raise
        return connection

    def admit(self, connection: socket.socket, address: str, secret: str) -> None:
        """Authenticate a client, on the server's side. Raises `OSError` if the client does not hold the secret."""
        deadline = time.monotonic() + LIMIT_S
        own = secrets.token_bytes(NONCE_BYTES)
        connection.settimeout(LIMIT_S)
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
    """Receive exactly `size` bytes. Raises `OSError` if they do not arrive by the deadline (monotonic seconds)."""
    received = b""
    while len(received) < size:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the other end sent no complete answer in time")
        connection.settimeout(left_s)
        more = connection.recv(size - len(received))
        if not more:
            raise OSError("the other end closed the connection during the handshake")
        received += more
    return received
