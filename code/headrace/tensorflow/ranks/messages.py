"""Small messages between ranks without Horovod: each rank sends numbers to rank 0, and rank 0 sends numbers to all.

Horovod's collectives need all ranks to act in the same order. MPI is no alternative: Horovod ends it when the first
rank leaves. So every rank, including rank 0, has a socket to a thread in rank 0's process. Both ends prove that they
have the token that rank 0 gave all ranks through Horovod. Once all ranks are connected, the port is closed.
"""

from __future__ import annotations

import contextlib
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable

import psutil

from headrace.errors import DeadlineError
from headrace.events import keep_going
from headrace.tensorflow.ranks import collectives
from headrace.tensorflow.ranks.epoch_count import Numbers
from headrace.training.handshake import LIMIT_S, Handshake, receive

CONNECT_TIMEOUT_S = 30.0
LOOK_EVERY_S = 1.0
_HANDSHAKE = Handshake(b"hdranks1", b"headrace ranks")
_RANK = struct.Struct("!q")
_MESSAGE = struct.Struct("!qqqq")
Decide = Callable[[int, Numbers | None], Iterable[Numbers]]
"""Function that rank 0 calls with a rank and its message, or with a rank and None if the rank has disconnected. Each
second, rank 0 calls it with -1 and None. The function returns messages to all ranks."""


class _Hub:
    """Rank 0's side of the connections to all ranks."""

    def __init__(self, ranks: int, decide: Decide) -> None:
        self._ranks, self._decide = ranks, decide
        self.token = secrets.token_hex()
        self._listener = socket.create_server(("0.0.0.0", 0))
        self.port = self._listener.getsockname()[1]
        self._links: dict[int, socket.socket] = {}
        self._all_here = threading.Event()
        threading.Thread(target=self._accept, name="ranks connect", daemon=True).start()

    def begin(self) -> None:
        """Wait until all ranks are connected, then receive their messages. Raises `DeadlineError`."""
        here = self._all_here.wait(CONNECT_TIMEOUT_S)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # this wakes `accept`
        self._listener.close()
        if not here:
            raise DeadlineError(
                f"some ranks did not reach rank 0 on port {self.port} in {CONNECT_TIMEOUT_S:g} s: see their errors"
            )
        threading.Thread(target=self._run, name="messages between ranks", daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener is closed
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            address, port = connection.getsockname()
            _HANDSHAKE.admit(connection, f"{address}:{port}", self.token)
            (rank,) = _RANK.unpack(receive(connection, _RANK.size, time.monotonic() + LIMIT_S))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._links[rank] = connection
            if len(self._links) == self._ranks:
                self._all_here.set()
            return
        connection.close()

    def _run(self) -> None:
        selector, looked_s = selectors.DefaultSelector(), time.monotonic()
        for rank, link in self._links.items():
            selector.register(link, selectors.EVENT_READ, rank)
        while self._links:
            for key, _ in selector.select(LOOK_EVERY_S):
                rank, link = key.data, self._links[key.data]
                try:
                    message = _MESSAGE.unpack(receive(link, _MESSAGE.size, time.monotonic() + LIMIT_S))
                except OSError:  # the rank is gone, or its message does not end
                    message = None
                    selector.unregister(link)
                    self._links.pop(rank).close()
                self._hear(rank, message)
            if time.monotonic() >= looked_s + LOOK_EVERY_S:
                looked_s = time.monotonic()
                self._hear(-1, None)

    def _hear(self, rank: int, numbers: Numbers | None) -> None:
        with keep_going():
            for each in self._decide(rank, numbers):
                for link in self._links.values():
                    with contextlib.suppress(OSError):  # that rank is gone, as `recv` will show
                        link.sendall(_MESSAGE.pack(*each))


class Link:
    """This rank's connection to rank 0. Every rank must make its link at the same time.

    Args:
        decide: function that turns one rank's message into messages to all ranks. Only rank 0 calls the function.
        heard: a thread calls this function with rank 0's messages, and with None when rank 0 or `close` ends the link.

    Raises:
        DeadlineError: on every rank, if one rank cannot reach rank 0.
    """

    def __init__(self, decide: Decide, heard: Callable[[Numbers | None], None]) -> None:
        rank, failed = collectives.rank(), ""
        hub = _Hub(collectives.size(), decide) if rank == 0 else None
        known = collectives.same_on_all_ranks(
            {"token": hub.token, "addresses": _addresses(), "port": hub.port} if hub else None, "headrace.link"
        )
        try:
            self._socket = _connect(known["addresses"], known["port"], known["token"], rank)
            if hub:
                hub.begin()
        except DeadlineError as error:
            failed = str(error)
        # A message before all ranks are connected would be lost.
        for each in collectives.of_all_ranks(failed, "headrace.link.here"):
            if each:
                raise DeadlineError(each)
        threading.Thread(target=self._read, args=(heard,), name="messages from rank 0", daemon=True).start()

    def tell(self, numbers: Numbers) -> None:
        """Send a message to rank 0; it is lost if rank 0 is gone."""
        with contextlib.suppress(OSError):
            self._socket.sendall(_MESSAGE.pack(*numbers))

    def close(self) -> None:
        """Close the connection, so that nothing more is sent or received."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _read(self, heard: Callable[[Numbers | None], None]) -> None:
        with contextlib.suppress(OSError):
            while len(message := self._socket.recv(_MESSAGE.size, socket.MSG_WAITALL)) == _MESSAGE.size:
                with keep_going():
                    heard(_MESSAGE.unpack(message))
        heard(None)


def _connect(addresses: list[str], port: int, token: str, rank: int) -> socket.socket:
    deadline, error = time.monotonic() + CONNECT_TIMEOUT_S, "no address"
    while time.monotonic() < deadline:
        for address in addresses:
            try:
                connection = _HANDSHAKE.enter(f"{address}:{port}", token)
                connection.sendall(_RANK.pack(rank))
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.settimeout(None)
                return connection
            except OSError as failed:
                error = f"{address}: {failed}"
        time.sleep(0.2)
    raise DeadlineError(
        f"rank {rank} cannot reach rank 0 on port {port} within {CONNECT_TIMEOUT_S:g} s ({error}): dnn hosts must "
        "reach each other on all ports, as MPI needs too"
    )


def _addresses() -> list[str]:
    """Return the addresses of this host: first those for other hosts, then its own loopback."""
    found = [
        each.address
        for addresses in psutil.net_if_addrs().values()
        for each in addresses
        if each.family == socket.AF_INET and not each.address.startswith("127.")
    ]
    return [*found, "127.0.0.1"]
