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


def proof(secret: str, who: str, worker_nonce: bytes, rank_nonce: bytes) -> bytes:
    """What `who` (rank or worker) says to prove that it holds the secret."""
    key = hmac.digest(secret.encode(), b"headrace transfer", hashlib.sha256)
    return hmac.digest(key, who.encode() + worker_nonce + rank_nonce, hashlib.sha256)


def enter(host: str, port: int, secret: str) -> socket.socket:
    """A connection to a worker that will serve it, within `LIMIT_S` for each step. Raises `OSError`."""
    connection = socket.create_connection((host, port), LIMIT_S)
    try:
        hello = _receive(connection, len(MAGIC) + NONCE_BYTES)
        if not hello.startswith(MAGIC):
            raise OSError("something else answers")
        worker, rank = hello[len(MAGIC) :], secrets.token_bytes(NONCE_BYTES)
        connection.sendall(MAGIC + rank + proof(secret, "rank", worker, rank))
        if not hmac.compare_digest(_receive(connection, PROOF_BYTES), proof(secret, "worker", worker, rank)):
            raise OSError("it does not hold this job's secret")
    except BaseException:
        connection.close()
        raise
    return connection


def _receive(connection: socket.socket, size: int) -> bytes:
    received = connection.recv(size, socket.MSG_WAITALL)
    if len(received) < size:
        raise OSError("something else answers, or nothing")
    return received
