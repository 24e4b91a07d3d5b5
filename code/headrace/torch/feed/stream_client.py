"""A rank's connections to feed servers for an `IterableDataset`: one for each of the rank's shards.

Each shard has a worker process of its own. If the connection to it breaks, or is silent for too long, another server
iterates over the same shard and continues at the missing batch.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

from headrace.rank import liveness
from headrace.torch.feed import protocol
from headrace.torch.feed.client import FIRST_PAUSE_S, LONGEST_PAUSE_S, Feeds, enter, join, receive
from headrace.torch.feed.scheduler import Schedule
from headrace.torch.fetch.iterable_fetcher import ShardRequest
from headrace.torch.fetch.map_fetcher import Fetched
from headrace.training.freed_memory import keep_freed_memory

AHEAD = 3
"""Maximum number of a shard's batches that are requested and not yet used. The rank has room for all of them, so it can
read each answer at once. If a server could not send for some seconds, its connection would end (`socket_buffers`)."""
PATIENCE_S = 10.0
"""Seconds of silence after which the rank tries another worker. Each silence doubles this limit. A worker that is still
making a batch is not silent: it sends a report every two seconds."""


class StreamEpoch:
    """The batches of a rank's shards in one epoch, one from each shard in turn.

    Args:
        request: returns the request for a batch. Arguments: a shard's index among the rank's shards; a batch number.
        shards: number of this rank's shards.
    """

    def __init__(self, feeds: Feeds, request: Callable[[int, int], ShardRequest], shards: int) -> None:
        keep_freed_memory()
        self._lanes = [_Lane(feeds, functools.partial(request, lane), lane, shards) for lane in range(shards)]
        self._turns = itertools.cycle(self._lanes)

    def next(self) -> Fetched:
        """Return the next batch of the shard whose turn it is. Raises `SampleError`, `DeadlineError`, `InputError`."""
        return next(self._turns).next()

    def close(self) -> None:
        """Close all connections, and drop batches under way."""
        # Join the threads that have a connection: they end soon. Other threads may still be trying to connect.
        open_ones = [lane for lane in self._lanes if lane.connection is not None]
        for lane in self._lanes:
            lane.close()
        join(lane.thread for lane in open_ones)


class _Lane:
    """One shard, with a thread that requests and receives its batches.

    Args:
        request: returns the request for a batch of the shard, given the batch's number.
        lane: the shard's place among the rank's `shards`.
    """

    def __init__(self, feeds: Feeds, request: Callable[[int], ShardRequest], lane: int, shards: int) -> None:
        self._feeds, self._lane, self._first_server = feeds, lane, feeds.rank * shards + lane
        self._schedule = Schedule(
            request,
            lambda: sys.maxsize,
            feeds.limit_s,
            feeds.prefetch_bytes // shards,
            ahead=1,
            least_ahead=1,
            name=lambda number: f"batch {request(number).number} of shard {request(number).shard}",
        )
        self._over, self._silences, self._at = False, 0, b""
        self.connection: socket.socket | None = None
        self.thread = threading.Thread(target=self._run, name=f"feed shard {lane}", daemon=True)
        self.thread.start()

    def next(self) -> Fetched:
        if self._over:
            return Fetched(None, over=True)
        fetched: Fetched = self._schedule.next()
        self._over = fetched.over
        return fetched

    def close(self) -> None:
        self._schedule.close()
        if connection := self.connection:
            protocol.end(connection)

    def _run(self) -> None:
        """Receive the shard from one server, or if that fails, from the next one."""
        pause_s, number = FIRST_PAUSE_S, self._first_server
        while not self._schedule.closed:
            server = self._feeds.servers[number % len(self._feeds.servers)]
            try:
                with contextlib.ExitStack() as stack:
                    connection, _ = enter(server, self._feeds.secret, self._feeds.hello, self._lane, stack)
                    self.connection, pause_s = connection, FIRST_PAUSE_S
                    stack.callback(setattr, self, "connection", None)
                    self._schedule.problem(server, "")
                    self._receive(connection, server)
                return
            except OSError as error:
                self._schedule.problem(server, "silent" if isinstance(error, TimeoutError) else error)
            except Exception as error:  # the dataset raised, or another attempt would not help
                self._schedule.fail(error)
                return
            number += 1
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def _receive(self, connection: socket.socket, server: str) -> None:
        """Receive the rest of the shard. Raises `OSError` and `SampleError`."""
        asked: deque[int] = deque()
        connection.settimeout(2**self._silences * PATIENCE_S)
        try:
            while True:
                while (number := self._schedule.take(server, wait=not asked)) is not None:
                    asked.append(number)
                    protocol.send_record(connection, self._schedule.request(number).as_json())
                if not asked:  # the rank has closed the epoch
                    return
                fetched, size = receive(connection, server, server, self._feeds.pin_memory, self._is_alive)
                self._silences = 0
                self._schedule.came(number := asked.popleft(), fetched, size)
                if fetched.over:
                    return
                if number == 0:  # the size of batches is known now
                    self._schedule.more_ahead(AHEAD - 1)
        except OSError as error:
            self._silences += isinstance(error, TimeoutError)
            for number in asked:
                self._schedule.broke(number, server, error)
            raise

    def _is_alive(self, at: bytes) -> None:
        """Record progress if the sample in a worker's report, `at`, differs from the sample in the previous report."""
        if at != self._at:
            self._at = at
            self._schedule.hear()
            liveness.note_progress()
