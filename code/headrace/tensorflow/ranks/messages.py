"""Small messages between ranks, beside Horovod: a few numbers from one to all others, whenever there is news.

Horovod's collectives are for what all ranks do in the same order; MPI itself is Horovod's, which ends it when the first
rank leaves. So rank 0 listens on a port of its own, the others connect, and it passes on what each says.
Who connects proves that it has the token that rank 0 gave all ranks through Horovod. A rank whose script has ended says
nothing more, and the others hear of that too.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import hmac
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from headrace.errors import DeadlineError
from headrace.events import keep_going
from headrace.tensorflow.ranks import collectives

CONNECT_TIMEOUT_S = 30.0
HELLO_TIMEOUT_S = 5.0
_NONCE_BYTES = 16
_HELLO = struct.Struct("!q32s")  # rank, proof
_MESSAGE = struct.Struct("!qqqqq")  # rank, and four numbers
_GONE = (-2, 0, 0, 0)
"""What rank 0 says in the name of a rank that is gone."""
Numbers = tuple[int, int, int, int]


@dataclass
class _Link:
    """A connection, and what of its next message has come."""

    socket: socket.socket
    rank: int = -1  # not known yet
    nonce: bytes = b""
    since: float = 0.0
    received: bytes = b""


class Post:
    """Tells all other ranks, and hears them. Every rank must make it at the same time.

    Args:
        heard: gets a rank and its numbers, in a thread of this object's.
        gone: gets a rank that says nothing more: its script has ended; without rank 0, no rank hears another.

    Raises:
        DeadlineError: on every rank, when one cannot reach rank 0.
    """

    def __init__(self, heard: Callable[[int, Numbers], None], gone: Callable[[int], None]) -> None:
        self._heard, self._gone = heard, gone
        self._rank = collectives.rank()
        self._lock = threading.Lock()
        self._links: list[_Link] = []
        self._selector = selectors.DefaultSelector()
        listener = socket.create_server(("0.0.0.0", 0)) if self._rank == 0 else None
        known = collectives.same_on_all_ranks(
            {"token": secrets.token_hex(32), "addresses": _addresses(), "port": listener.getsockname()[1]}
            if listener
            else None,
            "headrace.post",
        )
        self._token = bytes.fromhex(known["token"])
        self._all_here = threading.Event()
        failed = ""
        try:
            if listener:
                listener.setblocking(False)
                self._selector.register(listener, selectors.EVENT_READ, None)
            else:
                self._add(_Link(_connect(known["addresses"], known["port"], self._token, self._rank), rank=0))
            threading.Thread(target=self._run, name="messages between ranks", daemon=True).start()
            if listener and not self._all_here.wait(CONNECT_TIMEOUT_S):
                failed = f"not all ranks have reached rank 0 on port {known['port']} in {CONNECT_TIMEOUT_S:g} s"
        except DeadlineError as error:
            failed = str(error)
        # What is told before everyone is here would be lost.
        for each in collectives.of_all_ranks(failed, "headrace.post.here"):
            if each:
                raise DeadlineError(each)
        atexit.register(self._leave)  # before Horovod's and MPI's own ends, which wait for the other ranks

    def _leave(self) -> None:
        with self._lock:
            for link in self._links:
                _shut(link)

    def tell(self, numbers: Numbers) -> None:
        """Send to all other ranks; a rank that is gone is gone."""
        self._pass_on(_MESSAGE.pack(self._rank, *numbers), self._rank)

    def _pass_on(self, message: bytes, sender: int) -> None:
        with self._lock:
            for link in self._links:
                if link.rank not in (-1, sender):
                    try:
                        link.socket.sendall(message)
                    except OSError:  # within the message, perhaps: nothing that follows it could be read
                        _shut(link)

    def _add(self, link: _Link) -> None:
        link.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.socket.settimeout(HELLO_TIMEOUT_S)  # of sending: what comes is read when it is there
        self._selector.register(link.socket, selectors.EVENT_READ, link)
        with self._lock:
            self._links.append(link)

    def _drop(self, link: _Link) -> None:
        self._selector.unregister(link.socket)
        with self._lock:
            self._links.remove(link)
        link.socket.close()
        if link.rank >= 0:
            self._pass_on(_MESSAGE.pack(link.rank, *_GONE), link.rank)
            with keep_going():
                self._gone(link.rank)

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select(HELLO_TIMEOUT_S):
                if key.data is None:
                    self._accept(key.fileobj)  # type: ignore[arg-type]
                else:
                    self._read(key.data)
            for link in [each for each in self._links if each.rank < 0]:
                if time.monotonic() - link.since > HELLO_TIMEOUT_S:
                    self._drop(link)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            link = _Link(connection, nonce=secrets.token_bytes(_NONCE_BYTES), since=time.monotonic())
            connection.sendall(link.nonce)
            self._add(link)

    def _read(self, link: _Link) -> None:
        try:
            data = link.socket.recv(4096)
        except OSError:
            data = b""
        if not data:
            self._drop(link)
            return
        link.received += data
        if link.rank < 0:
            if len(link.received) < _HELLO.size:
                return
            rank, proof = _HELLO.unpack(link.received[: _HELLO.size])
            if not hmac.compare_digest(proof, _proof(self._token, link.nonce, rank)):
                self._drop(link)
                return
            link.rank, link.received = rank, link.received[_HELLO.size :]
            if len({each.rank for each in self._links} - {-1}) == collectives.size() - 1:
                self._all_here.set()
        while len(link.received) >= _MESSAGE.size:
            message, link.received = link.received[: _MESSAGE.size], link.received[_MESSAGE.size :]
            rank, *numbers = _MESSAGE.unpack(message)
            if self._rank == 0:
                self._pass_on(message, rank)
            with keep_going():
                if tuple(numbers) == _GONE:
                    self._gone(rank)
                else:
                    self._heard(rank, tuple(numbers))


def _shut(link: _Link) -> None:
    with contextlib.suppress(OSError):
        link.socket.shutdown(socket.SHUT_RDWR)


def _connect(addresses: list[str], port: int, token: bytes, rank: int) -> socket.socket:
    deadline, error = time.monotonic() + CONNECT_TIMEOUT_S, "no address"
    while time.monotonic() < deadline:
        for address in addresses:
            try:
                connection = socket.create_connection((address, port), HELLO_TIMEOUT_S)
                nonce = connection.recv(_NONCE_BYTES, socket.MSG_WAITALL)
                if len(nonce) < _NONCE_BYTES:
                    raise OSError("closed before it was asked who we are")
                connection.sendall(_HELLO.pack(rank, _proof(token, nonce, rank)))
                return connection
            except OSError as failed:
                error = f"{address}: {failed}"
        time.sleep(0.2)
    raise DeadlineError(
        f"rank {rank} cannot reach rank 0 on port {port} within {CONNECT_TIMEOUT_S:g} s ({error}): dnn hosts must "
        "reach each other on all ports, as MPI needs too"
    )


def _proof(token: bytes, nonce: bytes, rank: int) -> bytes:
    return hmac.new(token, nonce + str(rank).encode(), hashlib.sha256).digest()


def _addresses() -> list[str]:
    """Where this host may be reached: other hosts' ways first."""
    found = [
        each.address
        for addresses in psutil.net_if_addrs().values()
        for each in addresses
        if each.family == socket.AF_INET and not each.address.startswith("127.")
    ]
    return [*found, "127.0.0.1"]
