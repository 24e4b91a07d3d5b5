"""Protocol for requests and batches on a TCP connection between a rank and a feed server.

    both             the handshake: each proves that it holds the job's secret (`headrace.training.handshake`)
    rank → server    a length (4 bytes), then JSON that names a loader; the server replies with a length and JSON
    rank → server    a length, then JSON that requests a batch
    server → rank    kind, lengths of header and payload; the header (JSON); the payload (the batch's memory)

Numbers are little-endian. The server answers requests in order. A rank may send several before the first answer.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from collections.abc import Sequence
from typing import Any

from headrace.errors import InputError
from headrace.torch.feed.codec import MOST_BATCH_BYTES, MOST_HEADER_BYTES
from headrace.training.handshake import Handshake
from headrace.training.socket_buffers import receive, send

HANDSHAKE = Handshake(b"hrfeed_1", b"headrace feed")
BATCH, FAILED, OVER, ALIVE = 1, 2, 3, 4
"""Kinds of answers. `OVER`: the shard has no more batches. `ALIVE`: the shard's next batch is still being made."""
MOST_RECORD_BYTES = 16 << 20
_LENGTH = struct.Struct("<I")
_ANSWER = struct.Struct("<BxxxIQ")


def send_record(connection: socket.socket, record: Any) -> None:
    """Send a record as JSON. Raises `OSError`; raises `InputError` for a record that is too long."""
    text = json.dumps(record, separators=(",", ":")).encode()
    if len(text) > MOST_RECORD_BYTES:
        raise InputError(f"a request of {len(text):,} bytes is too long: make batches smaller")
    connection.sendall(_LENGTH.pack(len(text)) + text)


def receive_record(connection: socket.socket) -> Any:
    """Wait for a record. Raises `OSError` if the connection ends, and `InputError` if the record is not JSON."""
    (size,) = _LENGTH.unpack(receive(connection, _LENGTH.size))
    if size > MOST_RECORD_BYTES:
        raise InputError(f"a message of {size:,} bytes is not from headrace: does another program use this port?")
    try:
        return json.loads(receive(connection, size))
    except (ValueError, RecursionError) as error:
        raise InputError("a message is not JSON: does another program use this port?") from error


def send_answer(connection: socket.socket, kind: int, header: bytes, buffers: Sequence[memoryview] = ()) -> None:
    """Send the answer to a request. Raises `OSError`."""
    payload = sum(each.nbytes for each in buffers)
    send(connection, [memoryview(_ANSWER.pack(kind, len(header), payload) + header), *buffers])


def receive_head(connection: socket.socket) -> tuple[int, bytes, int]:
    """Wait for an answer; return its kind, its header and the payload's size. Raises `OSError` and `InputError`."""
    kind, header_bytes, payload_bytes = _ANSWER.unpack(receive(connection, _ANSWER.size))
    if kind not in (BATCH, FAILED, OVER, ALIVE) or header_bytes > MOST_HEADER_BYTES or payload_bytes > MOST_BATCH_BYTES:
        raise InputError("an answer has an unknown format: does another program use the feed server's port?")
    return kind, receive(connection, header_bytes), payload_bytes


def end(connection: socket.socket) -> None:
    """End a connection for all threads, and for forked processes that have a copy of the socket."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
