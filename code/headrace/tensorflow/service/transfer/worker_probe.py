"""The Python side of the handshake in `handshake.h`, to check that a worker answers."""

from __future__ import annotations

from headrace.training.handshake import LIMIT_S, NONCE_BYTES, PROOF_BYTES, Handshake

MAGIC = b"headrac2"
_HANDSHAKE = Handshake(MAGIC, b"headrace transfer")
proof = _HANDSHAKE.proof
enter = _HANDSHAKE.enter

__all__ = ["LIMIT_S", "MAGIC", "NONCE_BYTES", "PROOF_BYTES", "enter", "proof"]
