"""A rank's side of the feed for an `IterableDataset`: each of its parts by a connection of its own.

A part is made in a process of a feed server that makes nothing else. When its connection breaks, or is silent for too
long, another server iterates over the same part anew and goes on at the batch that is missing.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace import progress
from headrace.errors import DeadlineError
from headrace.torch.feed.scheduler import MOST_AHEAD_BYTES, MOST_BREAKS
from headrace.torch.fetch.map_fetcher import Made, SampleError, StreamOrder
from headrace.torch.rank_connection import JOIN_S, LEAVE_S, enter, receive_batch, send_order
from headrace.training.freed_memory import keep_freed_memory

AHEAD = 3
"""Batches of a part that the rank has asked for or holds. What it has asked for it reads at once: a server whose answer
finds no room for some seconds takes the rank for dead (`connection.prepare`)."""
PATIENCE_S = 10.0
"""A process says every two seconds that it makes a batch. One that is silent for so long is left, another for twice."""
PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
LOOK_EVERY_S = 0.25
_samples_passed = 0
progress.add_counter(lambda: _samples_passed)


class StreamFeed:
    """The batches of a rank's parts, in turn. Use `next` as long as they are wanted, then `close`.

    Args:
        servers: HOST:PORT of each.
        orders: the order of the n-th batch of the rank's m-th part.
        parts: of this rank.
        hello: which loader they are of.
        first: the server that the first part is asked of, by its place; the others follow.
        limit_s: how long to wait while nothing of a part comes.
        pin_memory: batches are to lie in memory that a GPU reads by itself.
    """

    def __init__(self, servers: Sequence[str], secret: str, orders: Callable[[int, int], StreamOrder], parts: int,
                 hello: Mapping[str, Any], first: int, limit_s: float, pin_memory: bool) -> None:  # fmt: skip
        keep_freed_memory()
        self._limit_s, self._step, self._pid = limit_s, 0, os.getpid()
        room = _Room(parts)
        self._lanes = [
            _Lane(servers, secret, orders, part, hello, first + part, pin_memory, room) for part in range(parts)
        ]  # fmt: skip

    def next(self) -> Made:
        """The next batch of the part whose turn it is. Raises `SampleError`, `DeadlineError`, `InputError`."""
        lane = self._lanes[self._step % len(self._lanes)]
        self._step += 1
        return lane.next(self._limit_s)

    def close(self) -> None:
        """End all connections; what is under way is dropped."""
        if os.getpid() != self._pid:  # a forked process, which has none of the threads
            return
        for lane in self._lanes:
            lane.close()
        now = time.monotonic()
        for lane in self._lanes:
            lane.join(now + (LEAVE_S if lane.is_open else JOIN_S))


class _Room:
    """How many batches each part may have on its way: all together so many bytes, each part one at least."""

    def __init__(self, parts: int) -> None:
        self._parts, self.largest = parts, 0

    def of_each(self) -> int:
        return max(min(MOST_AHEAD_BYTES // self.largest // self._parts, AHEAD), 1) if self.largest else 1


class _Lane:
    def __init__(self, servers: Sequence[str], secret: str, orders: Callable[[int, int], StreamOrder], part: int,
                 hello: Mapping[str, Any], place: int, pin_memory: bool, room: _Room) -> None:  # fmt: skip
        self._servers, self._secret, self._hello, self._pin_memory = servers, secret, hello, pin_memory
        self._orders, self._part, self._place = orders, part, place
        self._number = 0
        self._silences, self._problem = 0, ""
        self._at, self._moved_at = b"", 0.0  # the sample that is being made, and since when, as far as is known
        self._over = False
        self._come: queue.SimpleQueue[Made | Exception] = queue.SimpleQueue()
        self._room, self._changed = room, threading.Condition()
        self._out = self._granted = 0  # batches asked for or held; of them those that have not come
        self._closed = threading.Event()
        self._connection: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name=f"feed part {part}", daemon=True)
        self._thread.start()

    def next(self, limit_s: float) -> Made:
        deadline = time.monotonic() + limit_s
        while True:
            if self._over or self._closed.is_set():
                return Made(None, over=True)
            with contextlib.suppress(queue.Empty):
                came = self._come.get(timeout=LOOK_EVERY_S)
                break
            if time.monotonic() > max(deadline, self._moved_at + limit_s):
                order = self._orders(self._part, self._number)
                raise DeadlineError(
                    f"batch {order.number} of part {order.part} has not come from the feed servers within "
                    f"{limit_s:g} s ({self._problem or 'it is being made'})"
                )
        if isinstance(came, Exception):
            raise came
        self._over = came.over
        with self._changed:
            self._out -= 1
            self._changed.notify()
        return came

    def close(self) -> None:
        self._closed.set()
        if connection := self._connection:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads

    def _forget(self) -> None:
        self._connection = None

    @property
    def is_open(self) -> bool:
        """Whether it has a connection; then it ends at once, as soon as it has a processor."""
        return self._connection is not None

    def join(self, deadline: float) -> None:
        if self._thread is not threading.current_thread():  # in which a garbage collection may close this
            self._thread.join(max(deadline - time.monotonic(), 0.0))

    def _run(self) -> None:
        pause_s, breaks, broke_at = PAUSE_S, 0, -1
        while not self._closed.is_set():
            server, entered = self._servers[self._place % len(self._servers)], False
            try:
                with contextlib.ExitStack() as stack:
                    connection, _ = enter(server, self._secret, {**self._hello, "slot": self._part}, stack)
                    self._connection, self._problem, entered, pause_s = connection, "", True, PAUSE_S
                    stack.callback(self._forget)
                    self._take(connection, server)
                return
            except OSError as error:
                silent = isinstance(error, TimeoutError)
                self._problem = f"{server} is silent" if silent else f"{server}: {error}"
                self._silences += silent and entered
                if entered and not silent:
                    breaks = breaks + 1 if broke_at == self._number else 1
                    broke_at = self._number
            except Exception as error:  # of the dataset, or nothing that another attempt would help
                self._come.put(error)
                return
            if breaks >= MOST_BREAKS:
                order = self._orders(self._part, self._number)
                self._come.put(SampleError(
                    f"{breaks} feed processes ended while they made batch {order.number} of part {order.part}: does "
                    "one of its samples crash them, or is there too little memory? Their hosts' logs tell"
                ))  # fmt: skip
                return
            self._place += 1
            self._closed.wait(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def _take(self, connection: socket.socket, server: str) -> None:
        """All that is left of the part. Raises `OSError`, `SampleError`."""
        asked = self._number
        connection.settimeout(2**self._silences * PATIENCE_S)
        while not self._closed.is_set():
            while asked < self._number + self._granted or self._may_ask(wait=asked == self._number):
                send_order(connection, self._orders(self._part, asked))
                asked += 1
            if asked == self._number:
                continue
            made, size = receive_batch(connection, server, server, self._pin_memory, self._is_alive)
            self._room.largest = max(self._room.largest, size)
            self._silences = 0
            self._number, self._granted = self._number + 1, self._granted - 1
            self._come.put(made)
            if made.over:
                return

    def _may_ask(self, wait: bool) -> bool:
        """Whether there is room for one more batch than those granted, which a lost connection leaves granted."""
        with self._changed:
            if wait and self._out >= self._room.of_each():
                self._changed.wait(LOOK_EVERY_S)
            may = self._out < self._room.of_each()
            self._out, self._granted = self._out + may, self._granted + may
            return may

    def _is_alive(self, at: bytes) -> None:
        """To come to where training stopped is progress too, sample by sample."""
        global _samples_passed
        if at != self._at:
            self._at, self._moved_at = at, time.monotonic()
            _samples_passed += 1
