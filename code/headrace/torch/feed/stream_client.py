"""A rank's connections to feed servers for an `IterableDataset`: one for each of the rank's shards.

Each shard has a worker process of its own. If the connection to it breaks, or is silent for too long, another server
iterates over the same shard and continues at the missing batch.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
import time
from collections.abc import Callable

from headrace.errors import DeadlineError
from headrace.rank import liveness
from headrace.torch.feed import protocol
from headrace.torch.feed.client import FIRST_PAUSE_S, LONGEST_PAUSE_S, Feeds, enter, join, receive
from headrace.torch.feed.scheduler import MOST_BREAKS
from headrace.torch.fetch.iterable_fetcher import ShardRequest
from headrace.torch.fetch.map_fetcher import Fetched, SampleError
from headrace.training.freed_memory import keep_freed_memory

AHEAD = 3
"""The most batches of a shard that the rank requests or holds. Requests are limited because each answer must be read at
once: a server that cannot send an answer for some seconds assumes that the rank is dead (`socket_buffers.prepare`)."""
PATIENCE_S = 10.0
"""Seconds of silence after which the rank tries another worker. Each silence doubles this limit. A worker that is still
making a batch is not silent: it sends a report every two seconds."""
LOOK_EVERY_S = 0.25


class StreamEpoch:
    """The batches of a rank's shards in one epoch, one from each shard in turn.

    Args:
        request: returns a request, given the shard's place among the rank's shards, and the batch's number.
        shards: number of this rank's shards.
    """

    def __init__(self, feeds: Feeds, request: Callable[[int, int], ShardRequest], shards: int) -> None:
        keep_freed_memory()
        self.feeds, self.request, self.largest_bytes = feeds, request, 0
        self._step, self._shards, self._pid = 0, shards, os.getpid()
        self._lanes = [_Lane(self, lane, feeds.rank * shards + lane) for lane in range(shards)]

    def most_of_lane(self) -> int:
        """Return how many batches of a shard may be requested or held, if all are as large as the largest so far."""
        most_bytes, largest = self.feeds.prefetch_bytes, self.largest_bytes
        return max(min(most_bytes // largest // self._shards, AHEAD), 1) if largest else 1

    def next(self) -> Fetched:
        """Return the next batch of the shard whose turn it is. Raises `SampleError`, `DeadlineError`, `InputError`."""
        lane = self._lanes[self._step % len(self._lanes)]
        self._step += 1
        return lane.next()

    def close(self) -> None:
        """Close all connections, and drop batches under way."""
        if os.getpid() != self._pid:  # a forked process does not have the threads
            return
        # The thread of a shard with a connection ends soon. Others may still try to connect, so they are not joined.
        open_ones = [lane for lane in self._lanes if lane.connection is not None]
        for lane in self._lanes:
            lane.close()
        join(lane.thread for lane in open_ones)


class _Lane:
    """One shard, with a thread that requests and receives its batches.

    Args:
        place: index of the first server to use in `feeds.servers`, modulo its length. After a failure, 1 is added.
    """

    def __init__(self, epoch: StreamEpoch, lane: int, place: int) -> None:
        self._epoch, self._feeds, self._lane, self._place = epoch, epoch.feeds, lane, place
        self._number = 0
        self._silences, self._problem = 0, ""
        self._at, self._moved_at = b"", 0.0  # the last sample that the worker reported, and when it first did
        self._over = False
        self._come: queue.SimpleQueue[Fetched | Exception] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._taken = 0
        self._closed = threading.Event()
        self.connection: socket.socket | None = None
        self.thread = threading.Thread(target=self._run, name=f"feed shard {lane}", daemon=True)
        self.thread.start()

    def next(self) -> Fetched:
        began, limit_s = time.monotonic(), self._feeds.limit_s
        while True:
            if self._over or self._closed.is_set():
                return Fetched(None, over=True)
            with contextlib.suppress(queue.Empty):
                came = self._come.get(timeout=LOOK_EVERY_S)
                break
            if time.monotonic() > max(began, self._moved_at) + limit_s:
                request = self._epoch.request(self._lane, self._number)
                raise DeadlineError(
                    f"batch {request.number} of shard {request.shard} has not come from the feed servers within "
                    f"{limit_s:g} s ({self._problem or 'it is being made'}): see the data hosts' logs"
                )
        if isinstance(came, Exception):
            raise came
        self._over = came.over
        with self._changed:
            self._taken += 1
            self._changed.notify()
        return came

    def close(self) -> None:
        self._closed.set()
        if connection := self.connection:
            protocol.end(connection)

    def _run(self) -> None:
        pause_s, breaks, broke_at = FIRST_PAUSE_S, 0, -1
        while not self._closed.is_set():
            server, entered = self._feeds.servers[self._place % len(self._feeds.servers)], False
            try:
                with contextlib.ExitStack() as stack:
                    connection, _ = enter(server, self._feeds.secret, self._feeds.hello, self._lane, stack)
                    self.connection, self._problem, entered, pause_s = connection, "", True, FIRST_PAUSE_S
                    stack.callback(setattr, self, "connection", None)
                    self._take(connection, server)
                return
            except OSError as error:
                silent = isinstance(error, TimeoutError)
                self._problem = f"{server} is silent" if silent else f"{server}: {error}"
                self._silences += silent and entered
                if entered and not silent:
                    breaks = breaks + 1 if broke_at == self._number else 1
                    broke_at = self._number
            except Exception as error:  # the dataset raised, or another attempt would not help
                self._come.put(error)
                return
            if breaks >= MOST_BREAKS:
                request = self._epoch.request(self._lane, self._number)
                problem = (
                    f"{breaks} workers ended while they made batch {request.number} of shard {request.shard}: does "
                    "one of its samples crash them, or is there too little memory? Their hosts' logs say more"
                )
                self._come.put(SampleError(problem))
                return
            self._place += 1
            self._closed.wait(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def _take(self, connection: socket.socket, server: str) -> None:
        """Receive the rest of the shard. Raises `OSError` and `SampleError`."""
        asked = self._number
        connection.settimeout(2**self._silences * PATIENCE_S)
        while not self._closed.is_set():
            while asked < self._taken + self._epoch.most_of_lane():
                protocol.send_record(connection, self._epoch.request(self._lane, asked).as_json())
                asked += 1
            if asked == self._number:  # the rank holds as many as it may
                with self._changed:
                    if asked >= self._taken + self._epoch.most_of_lane():
                        self._changed.wait(LOOK_EVERY_S)
                continue
            fetched, size = receive(connection, server, server, self._feeds.pin_memory, self._is_alive)
            self._epoch.largest_bytes = max(self._epoch.largest_bytes, size)
            self._silences = 0
            self._number += 1
            self._come.put(fetched)
            if fetched.over:
                return

    def _is_alive(self, at: bytes) -> None:
        """Count a report of a new sample as progress: after a resume, samples may be replayed before any batch."""
        if at != self._at:
            self._at, self._moved_at = at, time.monotonic()
            liveness.note_progress()
