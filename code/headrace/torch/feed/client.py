"""A rank's side of the feed: batches of one epoch, in order, from all feed servers that are there."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.torch.feed.scheduler import Tasks
from headrace.torch.fetch.map_fetcher import Made, Order, SampleError
from headrace.torch.rank_connection import JOIN_S, LEAVE_S, enter, receive_batch, send_order
from headrace.training.freed_memory import keep_freed_memory

EXTRA_AHEAD = 2
"""Batches asked for beyond one for each connection."""
CONNECTIONS_PER_PROCESS = 2
"""One is sent while the next is made."""
MOST_CONNECTIONS = 64
"""To one server."""
LOOK_EVERY_S = 0.002
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
"""Before a connection is tried again."""


class Feed:
    """The batches of one epoch. Use `next` until the steps are over, then `close`.

    Args:
        servers: HOST:PORT of each.
        orders: the order of the batch of a step.
        steps: how many may be asked for by now.
        hello: which loader they are of: its number, and what it is.
        rank, world: connections are divided among the ranks.
        limit_s: how long to wait while nothing comes.
        pin_memory: batches are to lie in memory that a GPU reads by itself.
    """

    def __init__(
        self,
        servers: Sequence[str],
        secret: str,
        orders: Callable[[int], Order],
        steps: Callable[[], int],
        hello: Mapping[str, Any],
        rank: int,
        world: int,
        limit_s: float,
        pin_memory: bool,
    ) -> None:
        keep_freed_memory()
        self._secret, self._orders, self._hello = secret, orders, hello
        self._rank, self._world, self._pin_memory = rank, world, pin_memory
        self._steps, self._pid = steps, os.getpid()
        self._tasks = Tasks(steps(), EXTRA_AHEAD, limit_s)
        self._closed = threading.Event()
        self._lock = threading.RLock()  # a garbage collection may close this while a thread of its own holds it
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._step = 0
        for server in servers:
            self._start(server, 0)

    def next(self) -> Made:
        """The next step's batch. Raises `SampleError`, `DeadlineError`, `InputError`."""
        self._tasks.up_to(self._steps())
        made: Made = self._tasks.wait(self._step)
        self._step += 1
        return made

    def close(self) -> None:
        """End all connections; what is under way is dropped."""
        if os.getpid() != self._pid:  # a forked process, which has none of the threads
            return
        self._closed.set()
        self._tasks.close()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads
        deadline = time.monotonic() + LEAVE_S
        while self._open and time.monotonic() < deadline and threading.current_thread() not in self._threads:
            time.sleep(LOOK_EVERY_S)
        deadline = time.monotonic() + JOIN_S
        for thread in self._threads:  # those that just try to connect end by themselves
            if thread is not threading.current_thread():  # in which a garbage collection may close this
                thread.join(max(deadline - time.monotonic(), 0.0))

    def _start(self, server: str, number: int) -> None:
        thread = threading.Thread(target=self._keep, args=(server, number), name=f"feed {server}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _keep(self, server: str, number: int) -> None:
        """One connection to a server, made again when it breaks. The first one makes its sisters, once."""
        pause_s, first = FIRST_PAUSE_S, number == 0
        while not self._closed.is_set():
            with contextlib.ExitStack() as stack:
                try:
                    connection, processes = self._enter(server, number, stack)
                    if first:
                        self._make_sisters(server, processes)
                    first = False
                    self._tasks.problem(server, "")
                    delivered = self._work(connection, server, f"{server}#{self._slot(number) % processes}")
                    if delivered is None:
                        return
                    pause_s = FIRST_PAUSE_S if delivered else pause_s
                except OSError as error:
                    self._tasks.problem(server, error)
                except Exception as error:  # nothing that another attempt would help
                    self._tasks.fail(error)
                    return
            self._closed.wait(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def _slot(self, number: int) -> int:
        """Spreads the ranks' connections over a server's processes."""
        return self._rank + number * self._world

    def _make_sisters(self, server: str, processes: int) -> None:
        count = min(
            max(-(-CONNECTIONS_PER_PROCESS * processes // self._world), CONNECTIONS_PER_PROCESS), MOST_CONNECTIONS
        )
        self._tasks.more_connections(count)
        with self._lock:
            if not self._closed.is_set():
                for number in range(1, count):
                    self._start(server, number)

    def _enter(self, server: str, number: int, stack: contextlib.ExitStack) -> tuple[socket.socket, int]:
        """A connection that takes orders, and how many processes the server has. Raises `OSError`, `InputError`."""
        connection, processes = enter(server, self._secret, {**self._hello, "slot": self._slot(number)}, stack)
        with self._lock:
            if self._closed.is_set():
                raise OSError("closed")
            self._open.add(connection)
        stack.callback(self._forget, connection)
        return connection, processes

    def _forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)

    def _work(self, connection: socket.socket, server: str, process: str) -> int | None:
        """Batches over this connection, as long as it lasts; how many came. None: there is nothing more to do."""
        delivered = 0
        while (step := self._tasks.take(process)) is not None:
            try:
                send_order(connection, self._orders(step))
                made, size = receive_batch(connection, server, process, self._pin_memory)
                self._tasks.came(step, made, size)
                delivered += 1
            except SampleError as error:
                self._tasks.came(step, error)
            except OSError as error:
                self._tasks.broke(step, process, error)
                return delivered
        return None
