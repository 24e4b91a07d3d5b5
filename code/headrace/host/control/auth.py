"""Mutual authentication of the control channel from one shared secret.

Each session begins with fresh nonces from both sides; the session's key is an HMAC over them. Every call
and every reply carries an HMAC over method, counter and body, and each counter value is accepted once. So
no message can be replayed, in its own session or in another.

The server keeps no record of an unauthenticated client: the nonce itself proves that this process issued it,
so a flood of hellos costs no memory and displaces no other client.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from dataclasses import dataclass
from typing import Any

PROTOCOL_VERSION = 1
NONCE_BYTES = 16


class Refused(Exception):
    """Raised for a message that is malformed or does not prove who sent it; the text is for the log."""


def decode(message: bytes) -> dict[str, Any]:
    """Return a message's fields. Raises `Refused` unless it is a JSON object of this protocol version."""
    try:
        record = json.loads(message)
    except (ValueError, RecursionError) as error:
        raise Refused("not JSON") from error
    if not isinstance(record, dict):
        raise Refused("not a JSON object")
    if record.get("v") != PROTOCOL_VERSION:
        raise Refused(f"message of protocol version {str(record.get('v'))[:20]}; this host speaks {PROTOCOL_VERSION}")
    return record


def encode(**record: Any) -> bytes:
    return json.dumps({"v": PROTOCOL_VERSION, **record}).encode()


def _mac(key: bytes, *parts: object) -> str:
    message = json.dumps([str(part) for part in parts]).encode()
    return hmac.new(key, message, hashlib.sha256).hexdigest()


def _matches(given: object, expected: str) -> bool:
    return isinstance(given, str) and given.isascii() and hmac.compare_digest(given, expected)


def _text(record: dict[str, Any], name: str) -> str:
    value = record.get(name)
    if not isinstance(value, str) or not value:
        raise Refused(f"no {name}")
    return value


class ServerAuth:
    """The server's side of authentication: answers hellos, verifies calls, signs replies. Only one thread uses it."""

    def __init__(self, secret: str, host: str) -> None:
        self._secret = secret.encode()
        self._host = host
        self._issuer = secrets.token_bytes(32)
        self._counters: dict[str, int] = {}

    def hello(self, message: bytes) -> bytes:
        """Return the reply to a hello: this server's nonce, and the proof that it holds the secret."""
        client_nonce = _text(decode(message), "nonce")
        fresh = secrets.token_hex(NONCE_BYTES)
        server_nonce = f"{fresh}.{_mac(self._issuer, client_nonce, fresh)}"
        return encode(nonce=server_nonce, proof=_mac(self._secret, "server", self._host, client_nonce, server_nonce))

    def open(self, method: str, message: bytes) -> tuple[dict[str, Any], _Seal]:
        """Return a call's body, and the `_Seal` to sign the reply. Raises `Refused` for a forged or replayed call."""
        record = decode(message)
        client_nonce, server_nonce = _text(record, "client_nonce"), _text(record, "server_nonce")
        fresh, _, issued = server_nonce.partition(".")
        if not _matches(issued, _mac(self._issuer, client_nonce, fresh)):
            raise Refused("unknown session")
        key = _session_key(self._secret, self._host, client_nonce, server_nonce)
        counter, body = record.get("counter"), _text(record, "body")
        if not isinstance(counter, int) or not _matches(record.get("mac"), _mac(key, "call", method, counter, body)):
            raise Refused("wrong secret")
        if counter <= self._counters.get(server_nonce, 0):
            raise Refused("replayed message")
        self._counters[server_nonce] = counter
        return json.loads(body), _Seal(key, method, counter)


@dataclass(frozen=True)
class _Seal:
    key: bytes
    method: str
    counter: int

    def seal(self, body: dict[str, Any]) -> bytes:
        text = json.dumps(body)
        return encode(body=text, mac=_mac(self.key, "reply", self.method, self.counter, text))

    def open(self, message: bytes) -> dict[str, Any]:
        record = decode(message)
        body = _text(record, "body")
        if not _matches(record.get("mac"), _mac(self.key, "reply", self.method, self.counter, body)):
            raise Refused("the reply is not authentic")
        reply: dict[str, Any] = json.loads(body)
        return reply


class ClientAuth:
    """The client's side of authentication, for one session."""

    def __init__(self, secret: str, host: str) -> None:
        self._secret = secret.encode()
        self._host = host
        self._nonce = secrets.token_hex(NONCE_BYTES)
        self._server_nonce = ""
        self._key = b""
        self._counter = 0

    def hello(self) -> bytes:
        return encode(nonce=self._nonce)

    def greeted(self, message: bytes) -> None:
        """Begin the session. `message`: the reply to `hello`. Raises `Refused` if the server lacks the secret."""
        record = decode(message)
        self._server_nonce = _text(record, "nonce")
        proof = _mac(self._secret, "server", self._host, self._nonce, self._server_nonce)
        if not _matches(record.get("proof"), proof):
            raise Refused("the server does not hold this job's secret")
        self._key = _session_key(self._secret, self._host, self._nonce, self._server_nonce)

    def seal(self, method: str, body: dict[str, Any]) -> tuple[bytes, _Seal]:
        """Return a signed call, and the `_Seal` to verify the reply's signature."""
        self._counter += 1
        text = json.dumps(body)
        mac = _mac(self._key, "call", method, self._counter, text)
        message = encode(
            client_nonce=self._nonce, server_nonce=self._server_nonce, counter=self._counter, body=text, mac=mac
        )
        return message, _Seal(self._key, method, self._counter)


def _session_key(secret: bytes, host: str, client_nonce: str, server_nonce: str) -> bytes:
    return _mac(secret, "session", host, client_nonce, server_nonce).encode()
