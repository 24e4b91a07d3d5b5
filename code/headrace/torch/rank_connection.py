"""A rank's connection to a feed server: how it enters, and how a batch comes."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Mapping
from typing import Any

from headrace import received
from headrace.errors import InputError
from headrace.torch.feed import protocol as wire
from headrace.torch.feed.decode import Arriving
from headrace.torch.fetch.map_fetcher import Made, Order, SampleError, StreamOrder
from headrace.training.handshake import LIMIT_S

SEND_TIMEOUT_S = 60.0
LEAVE_S, JOIN_S = 10.0, 1.0
"""When a feed is given up, for threads whose connection is open, which end at once, and for those that try to connect.
One that is in torch when Python ends would abort the process."""
_received = received.Counter()
received.add_source(_received.counts)


def enter(server: str, secret: str, hello: Mapping[str, Any], stack: contextlib.ExitStack) -> tuple[socket.socket, int]:
    """A connection that takes orders, and how many processes the server has. Raises `OSError`, `InputError`.

    Args:
        hello: the loader's number, what it is, and the slot.
        stack: closes the connection.
    """
    connection = stack.enter_context(wire.HANDSHAKE.enter(server, secret))
    stack.callback(_end, connection)
    connection.settimeout(LIMIT_S)
    wire.send_record(connection, dict(hello))
    answer = wire.receive_record(connection)
    if not isinstance(answer, dict) or type(answer.get("processes")) is not int or answer["processes"] < 1:
        raise InputError(f"feed server {server} answers what none does")
    if answer.get("problem"):
        raise InputError(f"feed server {server}: {answer['problem']}")
    wire.prepare(connection, SEND_TIMEOUT_S)
    return connection, answer["processes"]


def _end(connection: socket.socket) -> None:
    """So that the other side hears of it, even if a process that was forked meanwhile has the connection too."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def send_order(connection: socket.socket, order: Order | StreamOrder) -> None:
    """Raises `OSError`."""
    wire.send_record(connection, order.as_json())


def receive_batch(
    connection: socket.socket, server: str, process: str, pin_memory: bool, alive: Callable[[bytes], None] | None = None
) -> tuple[Made, int]:
    """What answers the oldest order, and its bytes.

    Args:
        alive: called with what the process says of the sample that it makes.

    Raises:
        SampleError: the dataset raised; names the process.
        OSError: the connection has ended.
    """
    kind, header, payload_bytes = wire.receive_head(connection)
    while kind == wire.ALIVE and alive:
        alive(header)
        kind, header, payload_bytes = wire.receive_head(connection)
    if kind == wire.FAILED:
        raise failure(header, process)
    if kind == wire.OVER:
        return Made(None, over=True), 0
    arriving = Arriving(header, payload_bytes, pin_memory)
    wire.receive_into(connection, arriving.buffers)
    made = Made(arriving.batch(), arriving.skipped)
    _received.add(server, payload_bytes)
    return made, payload_bytes


def failure(header: bytes, process: str) -> SampleError:
    """The error that a feed process tells, with where it was."""
    try:
        text = str(json.loads(header)["error"])
    except (ValueError, KeyError, TypeError):
        text = "an error that cannot be read"
    first, newline, rest = text.partition("\n")
    return SampleError(f"{first} [on {process}]{newline}{rest}")
