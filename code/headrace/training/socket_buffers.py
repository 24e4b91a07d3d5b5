"""Send and receive batches on an authenticated TCP connection, without copying their memory."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
from collections.abc import Sequence

_MOST_PARTS = 512
"""Maximum number of buffers in one system call. Linux allows 1,024."""
_SOCKET_BYTES = 4 << 20
_WAKE_BYTES = 256 << 10
"""Bytes that must arrive before the receiver of a batch wakes, so that both ends stay busy."""
_LONGEST_SLEEP, _NO_LIMIT = struct.pack("ll", 1, 0), struct.pack("ll", 0, 0)
NOT_READ_MS = 10_000
"""Milliseconds after which a connection ends if the other side's kernel has accepted none of the sent data."""
_DEAD_AFTER = {"TCP_KEEPIDLE": 4, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}
"""Seconds of silence before a keepalive probe, seconds between probes, and how many failed probes end a connection."""


def prepare(connection: socket.socket, send_timeout_s: float) -> None:
    """Set up an authenticated connection for batches: blocking, and closed by the kernel if the other side is dead.

    Args:
        send_timeout_s: seconds that the other side may leave sent data unread.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _DEAD_AFTER.items():
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, NOT_READ_MS)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", max(int(send_timeout_s), 1), 0))
    connection.settimeout(None)


def send(connection: socket.socket, buffers: Sequence[memoryview]) -> None:
    """Send the buffers in order. Raises `OSError`."""
    parts = [each for each in buffers if each.nbytes]
    while parts:
        parts = _rest(parts, connection.sendmsg(parts[:_MOST_PARTS]))


def receive(connection: socket.socket, size: int) -> bytes:
    """Receive exactly `size` bytes. Raises `OSError` if the connection ends first."""
    received = connection.recv(min(size, _SOCKET_BYTES), socket.MSG_WAITALL) if size else b""
    while len(received) < size:
        more = connection.recv(min(size - len(received), _SOCKET_BYTES), socket.MSG_WAITALL)
        if not more:
            raise OSError("the connection has ended")
        received += more
    return received


def receive_into(connection: socket.socket, buffers: Sequence[memoryview]) -> None:
    """Receive straight into the buffers until they are full. Raises `OSError`."""
    parts = [each for each in buffers if each.nbytes]
    much = sum(each.nbytes for each in parts) - _WAKE_BYTES
    if much >= _WAKE_BYTES and connection.gettimeout() is None and _wake_at(connection, _WAKE_BYTES):
        try:
            parts = _filled(connection, parts, much)
        finally:
            _wake_at(connection, 1)  # fewer than _WAKE_BYTES may be left
    _filled(connection, parts, sum(each.nbytes for each in parts))


def _filled(connection: socket.socket, parts: list[memoryview], size: int) -> list[memoryview]:
    """Receive `size` bytes into the first parts, and return the parts that are not filled yet."""
    while size:
        try:
            got = connection.recvmsg_into(_first(parts, size), 0, socket.MSG_WAITALL)[0]
        except BlockingIOError:  # no data for `_LONGEST_SLEEP`
            continue
        if not got:
            raise OSError("the connection has ended")
        parts, size = _rest(parts, got), size - got
    return parts


def _wake_at(connection: socket.socket, size: int) -> bool:
    """Make the receiver sleep until `size` bytes have arrived. Waking for each segment costs as much as copying it.

    The sleep also ends after `_LONGEST_SLEEP`. Returns False if the kernel does not support this.
    """
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _LONGEST_SLEEP if size > 1 else _NO_LIMIT)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
    except OSError:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _NO_LIMIT)
        return False
    return True


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
