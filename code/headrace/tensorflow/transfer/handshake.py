"""The handshake of `handshake.h`, for whoever asks a worker whether it is there."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket

MAGIC = b"headrac2"
NONCE_BYTES = 16
PROOF_BYTES = 32
LIMIT_S = 5.0


def proof(secret: str, who: str, worker_nonce: bytes, rank_nonce: bytes, address: str) -> bytes:
    """What `who` (rank or worker) says to prove that it holds the secret; the address is the worker's."""
    key = hmac.digest(secret.encode(), b"headrace transfer", hashlib.sha256)
    return hmac.digest(key, who.encode() + worker_nonce + rank_nonce + address.encode(), hashlib.sha256)


def enter(address: str, secret: str) -> socket.socket:
    """A connection to the worker at `HOST:PORT` that will serve it, within `LIMIT_S` a step. Raises `OSError`."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), LIMIT_S)
    try:
        hello = _receive(connection, len(MAGIC) + NONCE_BYTES)
        if not hello.startswith(MAGIC):
            raise OSError("something else answers")
        worker, rank = hello[len(MAGIC) :], secrets.token_bytes(NONCE_BYTES)
        connection.sendall(MAGIC + rank + proof(secret, "rank", worker, rank, address))
        if not hmac.compare_digest(_receive(connection, PROOF_BYTES), proof(secret, "worker", worker, rank, address)):
            raise OSError("it does not hold this job's secret")
    except BaseException:
        connection.close()
        raise
    return connection


def _receive(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        more = connection.recv(size - len(received))
        if not more:
            raise OSError("something else answers, or nothing")
        received += more
    return received
