"""A rank's connections to all feed servers, over which it receives the batches of each epoch in order."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import DeadlineError, InputError
from headrace.rank import liveness, receipts
from headrace.torch.feed import protocol, script
from headrace.torch.feed.codec import Decoder
from headrace.torch.feed.scheduler import Schedule
from headrace.torch.fetch.map_fetcher import BatchRequest, Fetched, SampleError
from headrace.training.freed_memory import keep_freed_memory
from headrace.training.handshake import LIMIT_S
from headrace.training.socket_buffers import prepare, receive_into

EXTRA_AHEAD = 2
"""Batches that each rank requests ahead beyond its share. The share is `prefetch_factor` × workers / ranks."""
CONNECTIONS_PER_PROCESS = 2
"""Connections to each worker of a server. With two, the worker sends one batch while it makes the next."""
MOST_CONNECTIONS = 64
"""Largest number of connections to one server."""
SEND_TIMEOUT_S = 60.0
LEAVE_S = 10.0
"""Seconds that `join` waits for the threads of connections. These end as soon as they get processor time."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
"""Shortest and longest pause in seconds before a failed connection is tried again. It doubles with each failure."""
_received = receipts.Counter()
receipts.add_source(_received.counts)


class NotKnown(InputError):
    """Raised if a server does not have the loader and never will."""


class NotYetKnown(OSError):
    """Raised if a server does not have the loader yet: the server's own run of the script has not created it so far."""


@dataclass(frozen=True)
class Feeds:
    """The feed servers of one loader, and the settings with which a rank reads from them.

    Attributes:
        servers: HOST:PORT of each feed server.
        hello: first message on each connection: the loader's configuration, and its key in the field `loader`.
        rank, world: this rank, and the number of ranks. The ranks share the servers' workers.
        limit_s: seconds to wait for a batch while no server makes progress.
        pin_memory: whether batches are received into pinned memory.
        prefetch_factor: number of batches that all ranks together request in advance for each worker of a server.
        prefetch_bytes: limit on the bytes of batches that are requested and not yet used by the rank.
    """

    servers: Sequence[str]
    secret: str
    hello: Mapping[str, Any]
    rank: int
    world: int
    limit_s: float
    pin_memory: bool
    prefetch_factor: int
    prefetch_bytes: int


class FeedClient:
    """One loader's connections to the feed servers, which stay open for all epochs.

    Args:
        request: returns the request for a step of the first epoch.
        known: returns how many steps of the first epoch can be requested now. Later epochs have their own functions.
    """

    def __init__(self, feeds: Feeds, request: Callable[[int], BatchRequest], known: Callable[[], int]) -> None:
        keep_freed_memory()
        self._feeds, self._pid, self._ahead, self._closed = feeds, os.getpid(), EXTRA_AHEAD, threading.Event()
        self._changed = threading.Condition(threading.RLock())  # reentrant: garbage collection may call close anywhere
        self.epoch = Schedule(request, known, feeds.limit_s, feeds.prefetch_bytes, self._ahead)
        self._open: dict[socket.socket, threading.Thread] = {}
        for server in feeds.servers:
            self._start(server, 0)

    def begin(self, request: Callable[[int], BatchRequest], known: Callable[[], int]) -> None:
        """Request the first batches of another epoch. The previous epoch must be closed."""
        with self._changed:
            feeds, largest = self._feeds, self.epoch.largest_bytes
            self.epoch = Schedule(request, known, feeds.limit_s, feeds.prefetch_bytes, self._ahead, largest)
            self._changed.notify_all()

    def close(self) -> None:
        """Close all connections, and drop batches under way."""
        if os.getpid() != self._pid:  # a forked process does not have the threads
            return
        self._closed.set()
        with self._changed:
            self.epoch.close()
            self._changed.notify_all()
            threads = dict(self._open)
            for connection in threads:
                protocol.end(connection)
        join(threads.values())

    def _start(self, server: str, number: int) -> None:
        threading.Thread(target=self._keep, args=(server, number), name=f"feed {server}", daemon=True).start()

    def _keep(self, server: str, number: int) -> None:
        """Keep one connection to a server open, and reconnect when it breaks. Connection 0 also starts the others."""
        pause_s, is_first = FIRST_PAUSE_S, number == 0
        slot = self._feeds.rank + number * self._feeds.world  # spreads the ranks over a server's workers
        while not self._closed.is_set():
            with contextlib.ExitStack() as stack:
                try:
                    connection, processes = enter(server, self._feeds.secret, self._feeds.hello, slot, stack)
                    with self._changed:
                        if self._closed.is_set():
                            return
                        self._open[connection] = threading.current_thread()
                    stack.callback(self._open.pop, connection)
                    if is_first:
                        self._start_others(server, processes)
                    is_first, pause_s = False, FIRST_PAUSE_S
                    self.epoch.problem(server, "")
                    self._work(connection, server, f"{server}#{slot % processes}")
                except NotKnown as error:  # other servers may have the loader
                    self.epoch.problem(server, error)
                    return
                except OSError as error:
                    self.epoch.problem(server, error)
                except Exception as error:  # another attempt would not help
                    self.epoch.fail(error)
                    return
            self._closed.wait(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def _start_others(self, server: str, processes: int) -> None:
        world = self._feeds.world
        connections = max(-(-CONNECTIONS_PER_PROCESS * processes // world), CONNECTIONS_PER_PROCESS)
        ahead = max(-(-self._feeds.prefetch_factor * processes // world), 1)
        with self._changed:
            self._ahead += ahead
            self.epoch.more_ahead(ahead)
            if not self._closed.is_set():
                for number in range(1, min(connections, MOST_CONNECTIONS)):
                    self._start(server, number)

    def _work(self, connection: socket.socket, server: str, process: str) -> None:
        """Receive batches over this connection until it breaks or the client closes."""
        epoch: Schedule | None = None
        while not self._closed.is_set():
            with self._changed:
                while self.epoch is epoch and not self._closed.is_set():
                    self._changed.wait()
                epoch = self.epoch
            while (step := epoch.take(process)) is not None:
                try:
                    protocol.send_record(connection, epoch.request(step).as_json())
                    came = receive(connection, server, process, self._feeds.pin_memory)
                    epoch.came(step, *came)  # no `del came`: glibc would unmap the thread's memory when all is free
                except SampleError as error:
                    epoch.came(step, error)
                except OSError as error:
                    epoch.broke(step, process, error)
                    return


class FeedClients:
    """A loader's clients: one for each iteration that is open at the same time. Later epochs use the same clients."""

    def __init__(self) -> None:
        self._all: list[FeedClient] = []
        self._lock = threading.Lock()  # threads of the script may begin iterations at the same time

    def begin(self, feeds: Feeds, request: Callable[[int], BatchRequest], known: Callable[[], int]) -> Schedule:
        """Request the first batches of an epoch through an idle client, or a new one."""
        with self._lock:
            if client := next((each for each in self._all if each.epoch.closed), None):
                client.begin(request, known)
            else:
                self._all.append(client := FeedClient(feeds, request, known))
            return client.epoch

    def close(self) -> None:
        for client in self._all:
            client.close()


def enter(
    server: str, secret: str, hello: Mapping[str, Any], slot: int, stack: contextlib.ExitStack
) -> tuple[socket.socket, int]:
    """Return a connection that is ready for requests, and how many workers the server has.

    Args:
        hello: the loader's key and configuration.
        slot: number that selects the server's worker.
        stack: exit stack that closes the connection.

    Raises:
        OSError: the server cannot be reached now.
        NotYetKnown: the server does not have the loader yet. This is an `OSError`, too.
        NotKnown: the server does not have the loader, and never will.
        InputError: the server's script or data differ from this rank's.
    """
    connection = stack.enter_context(protocol.HANDSHAKE.enter(server, secret))
    stack.callback(protocol.end, connection)
    connection.settimeout(LIMIT_S)
    protocol.send_record(connection, {**hello, "slot": slot})
    answer = protocol.receive_record(connection)
    if not isinstance(answer, dict) or type(answer.get("processes")) is not int or answer["processes"] < 1:
        raise InputError(f"{server} does not answer like a feed server: check whether another program listens there")
    if answer.get("unknown") == "for good":
        raise NotKnown(f"feed server {server} does not have loader {hello.get('loader')} of the script")
    if answer.get("unknown"):
        raise NotYetKnown("the server's script has not made this loader yet")
    if answer.get("problem"):
        raise InputError(f"feed server {server}: {answer['problem']}")
    prepare(connection, SEND_TIMEOUT_S)
    return connection, answer["processes"]


def wait_until_known(servers: Sequence[str], secret: str, hello: Mapping[str, Any], limit_s: float) -> bool:
    """Wait until a server has the loader; return False if no server ever will.

    A server runs the script too. If the script first iterates over another loader, for example to compute a mean, the
    server makes that whole pass itself. While a server answers that the loader will come, the wait has no limit.
    Raises `DeadlineError` if no server has answered for `limit_s` seconds.
    """
    pause_s, heard = FIRST_PAUSE_S, time.monotonic()
    while time.monotonic() - heard < limit_s:
        problems, is_coming = [], False
        for server in servers:
            with contextlib.ExitStack() as stack:
                try:
                    enter(server, secret, {**hello, "probe": True}, 0, stack)
                    return True
                except NotKnown:
                    problems.append("")
                except OSError as error:
                    problems.append(f"{server}: {error}")
                    is_coming |= isinstance(error, NotYetKnown)
        if not any(problems):
            return False
        if is_coming:
            heard = time.monotonic()
            liveness.note_progress()
            script.print_once("waiting for data hosts: they have not reached this loader in the script yet")
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
    problem = "; ".join(filter(None, problems))
    raise DeadlineError(f"no feed server has answered within {limit_s:g} s ({problem}): see the data hosts' logs")


def join(threads: Iterable[threading.Thread]) -> None:
    """Wait until these threads have ended. A thread still inside torch when Python exits would abort the process."""
    deadline = time.monotonic() + LEAVE_S
    for thread in threads:
        if thread is not threading.current_thread():  # garbage collection may close a client in one of its threads
            thread.join(max(deadline - time.monotonic(), 0.0))


def receive(
    connection: socket.socket, server: str, process: str, pin_memory: bool, alive: Callable[[bytes], None] | None = None
) -> tuple[Fetched, int]:
    """Receive the answer to the oldest request, and return it with its size in bytes.

    Args:
        process: name of the worker, for error messages.
        alive: function to call with each report of progress that the worker sends before the batch.

    Raises:
        SampleError: the dataset raised in the worker.
        OSError: the connection has ended.
    """
    kind, header, payload_bytes = protocol.receive_head(connection)
    while kind == protocol.ALIVE and alive:
        alive(header)
        kind, header, payload_bytes = protocol.receive_head(connection)
    if kind == protocol.FAILED:
        first, newline, rest = header.decode(errors="replace").partition("\n")
        raise SampleError(f"{first} [on {process}]{newline}{rest}")
    if kind == protocol.OVER:
        return Fetched(None, over=True), 0
    decoder = Decoder(header, payload_bytes, pin_memory)
    receive_into(connection, decoder.buffers)
    fetched = Fetched(decoder.batch(), decoder.skipped, state=decoder.state)
    _received.add(server, payload_bytes)
    return fetched, payload_bytes
