"""Carry requests and batches over one TCP connection between a rank and a feed server.

    both             the handshake: each proves that it holds the job's secret (`headrace.training.handshake`)
    rank → server    a length (4 bytes), JSON: which loader; the server answers in the same form
    rank → server    a length, JSON: a request for a batch
    server → rank    kind, lengths of header and payload; the header (JSON); the payload (the batch's memory)

Numbers are little-endian. Requests are answered in order; a rank may send the next ones before the first is answered.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from headrace.errors import InputError
from headrace.torch.feed.encode import MOST_BATCH_BYTES, MOST_HEADER_BYTES
from headrace.training.handshake import Handshake

HANDSHAKE = Handshake(b"hrfeed_1", b"headrace feed")
BATCH, FAILED, OVER, ALIVE = 1, 2, 3, 4
"""Kinds of answers. `OVER`: the shard of a stream has no more batches. `ALIVE`: its next batch is still being made."""
MOST_RECORD_BYTES = 16 << 20
_LENGTH = struct.Struct("<I")
_ANSWER = struct.Struct("<BxxxIQ")
_MOST_PARTS = 512
"""Buffers in one system call; Linux takes 1,024."""
_SOCKET_BYTES = 4 << 20
_WAKE_BYTES = 256 << 10
"""The receiver of a batch wakes when this much has come, so that both ends keep busy."""
_LONGEST_SLEEP, _NO_LIMIT = struct.pack("ll", 1, 0), struct.pack("ll", 0, 0)
NOT_READ_MS = 10_000
"""A connection ends when the other side has taken nothing that was sent for this long."""
_DEAD_AFTER = {"TCP_KEEPIDLE": 4, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}
"""Seconds of silence until the kernel probes a connection, seconds between probes, and how many may fail."""


def prepare(connection: socket.socket, send_timeout_s: float) -> None:
    """Set an authenticated connection up for batches: it blocks, and ends when the other side is dead.

    Args:
        send_timeout_s: how long the other side may not read.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _DEAD_AFTER.items():
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, NOT_READ_MS)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", max(int(send_timeout_s), 1), 0))
    connection.settimeout(None)


def send_record(connection: socket.socket, record: Any) -> None:
    """Send a record as JSON. Raises `OSError`."""
    text = json.dumps(record, separators=(",", ":")).encode()
    if len(text) > MOST_RECORD_BYTES:
        raise InputError(f"a request of {len(text):,} bytes is too long: make batches smaller")
    connection.sendall(_LENGTH.pack(len(text)) + text)


def receive_record(connection: socket.socket) -> Any:
    """Wait for a record. Raises `OSError` when the connection ends, `InputError` for what is not JSON."""
    return _parsed(_receive(connection, _size_of(_receive(connection, _LENGTH.size))))


class Records:
    """Puts records together that arrive in pieces."""

    def __init__(self) -> None:
        self._left = bytearray()

    def of(self, piece: bytes) -> Iterator[Any]:
        """Take a piece, and yield the records that it completes. Raises `InputError` for what is not JSON."""
        self._left += piece
        while len(self._left) >= _LENGTH.size:
            end = _LENGTH.size + _size_of(bytes(self._left[: _LENGTH.size]))
            if len(self._left) < end:
                return
            record = bytes(self._left[_LENGTH.size : end])
            del self._left[:end]
            yield _parsed(record)


def _size_of(length: bytes) -> int:
    (size,) = _LENGTH.unpack(length)
    if size > MOST_RECORD_BYTES:
        raise InputError(f"a message announces {size:,} bytes: no rank or feed server sends so much")
    return int(size)


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError("a message is not JSON: something else than headrace has sent it") from error


def send_answer(connection: socket.socket, kind: int, header: bytes, buffers: Sequence[memoryview] = ()) -> None:
    """Send the answer to a request. Raises `OSError`."""
    payload = sum(each.nbytes for each in buffers)
    parts = [memoryview(_ANSWER.pack(kind, len(header), payload) + header), *(each for each in buffers if each.nbytes)]
    while parts:
        parts = _rest(parts, connection.sendmsg(parts[:_MOST_PARTS]))


def receive_head(connection: socket.socket) -> tuple[int, bytes, int]:
    """Wait for an answer; return its kind, its header, and the size of the payload. Raises `OSError`, `InputError`."""
    kind, header_bytes, payload_bytes = _ANSWER.unpack(_receive(connection, _ANSWER.size))
    if kind not in (BATCH, FAILED, OVER, ALIVE) or header_bytes > MOST_HEADER_BYTES or payload_bytes > MOST_BATCH_BYTES:
        raise InputError("an answer has a kind or a size that no feed server sends: something else answers")
    return kind, _receive(connection, header_bytes), payload_bytes


def receive_into(connection: socket.socket, buffers: Sequence[memoryview]) -> None:
    """Fill the buffers, straight from the socket. Raises `OSError`."""
    parts = [each for each in buffers if each.nbytes]
    much = sum(each.nbytes for each in parts) - _WAKE_BYTES
    if much >= _WAKE_BYTES and connection.gettimeout() is None and _wake_at(connection, _WAKE_BYTES):
        try:
            parts = _filled(connection, parts, much)
        finally:
            _wake_at(connection, 1)  # less than that may be left
    _filled(connection, parts, sum(each.nbytes for each in parts))


def _filled(connection: socket.socket, parts: list[memoryview], size: int) -> list[memoryview]:
    """Fill the first `size` bytes of the parts; return what is left of them."""
    while size:
        try:
            got = connection.recvmsg_into(_first(parts, size), 0, socket.MSG_WAITALL)[0]
        except BlockingIOError:  # nothing has come within `_LONGEST_SLEEP`
            continue
        if not got:
            raise OSError("the connection has ended")
        parts, size = _rest(parts, got), size - got
    return parts


def _wake_at(connection: socket.socket, size: int) -> bool:
    """Have the receiver sleep until `size` bytes are there: to wake for each segment costs as much as to copy it.

    The sleep also ends after `_LONGEST_SLEEP`, whatever the kernel does. Returns False where the kernel cannot do it.
    """
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _LONGEST_SLEEP if size > 1 else _NO_LIMIT)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
    except OSError:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _NO_LIMIT)
        return False
    return True


def _receive(connection: socket.socket, size: int) -> bytes:
    received = connection.recv(min(size, _SOCKET_BYTES), socket.MSG_WAITALL) if size else b""
    while len(received) < size:
        more = connection.recv(min(size - len(received), _SOCKET_BYTES), socket.MSG_WAITALL)
        if not more:
            raise OSError("the connection has ended")
        received += more
    return received


def _first(parts: list[memoryview], size: int) -> list[memoryview]:
    """Return the parts' first `size` bytes, or as many of them as one system call takes."""
    first = []
    for part in itertools.islice(parts, _MOST_PARTS):
        first.append(part[:size])
        if (size := size - part.nbytes) <= 0:
            break
    return first


def _rest(parts: list[memoryview], done: int) -> list[memoryview]:
    """Return the parts without their first `done` bytes."""
    for number, part in enumerate(parts):
        if done < part.nbytes:
            return [part[done:], *parts[number + 1 :]]
        done -= part.nbytes
    return []
