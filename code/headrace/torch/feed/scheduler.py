"""Decide which connection makes which batch of an epoch, and which batch is made once more. No sockets: threads ask.

A batch is numbered by its step. A connection that is free takes the next step, so a fast server makes more of them.
When a connection breaks, another one makes its batch; so it does when the rank waits too long for a batch. Both make
the same, and the first answer counts.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import DeadlineError
from headrace.torch.fetch.map_fetcher import SampleError

DEFAULT_PREFETCH_BYTES, LEAST_AHEAD = 2 << 30, 2
"""A rank asks for as many batches as fit into these bytes, and always for two."""
MOST_BREAKS, BREAKS_APART_S = 5, 0.5
"""A batch during which this many processes end becomes an error; processes that end together count as one."""
FIRST_PATIENCE_S, PATIENCE, LATELY = 2.0, 5.0, 32
"""A batch is asked for once more after these seconds, or after this multiple of the slowest of the last `LATELY`."""
LOOK_EVERY_S = 0.25


@dataclass
class _Asked:
    by: list[str] = field(default_factory=list)
    """The processes that make it."""
    at: float = 0.0
    """When it was last asked for, by the schedule's clock."""
    breaks: int = 0
    broke_at: float = -BREAKS_APART_S


class Schedule:
    """The steps of one epoch, between a rank, which wants them in order, and the threads of its connections.

    Args:
        steps: how many steps there are; `up_to` changes it.
        limit_s: how long the rank waits while no server makes progress.
        most_bytes: size of the batches that the rank has asked for and not yet used.
        ahead: how many those may be; `more_ahead` adds to it.
        largest_bytes: size of a batch, as far as it is known from an earlier epoch.
    """

    def __init__(
        self,
        steps: int,
        limit_s: float,
        most_bytes: int,
        ahead: int = 0,
        largest_bytes: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._steps, self._ahead, self._most_bytes = steps, ahead, most_bytes
        self._limit_s, self._clock = limit_s, clock
        self._lock = threading.RLock()  # a signal handler of the rank may close
        self._here = threading.Condition(self._lock)  # the rank waits for its batch
        self._free = threading.Condition(self._lock)  # connections wait for a step to make
        self._next = self._wanted = 0
        self.largest_bytes = largest_bytes
        self._asked: dict[int, _Asked] = {}
        self._again: deque[int] = deque()
        self._come: dict[int, Any] = {}
        self._error: Exception | None = None
        self._closed = False
        self._took_s: deque[float] = deque(maxlen=LATELY)
        self._problems: dict[str, str] = {}
        self._heard_at = clock()

    def more_ahead(self, count: int) -> None:
        """Ask for this many more batches before the rank wants them: there are more processes to keep busy."""
        with self._lock:
            self._ahead += count
            self._free.notify_all()

    def up_to(self, steps: int) -> None:
        """Set the number of steps, as far as it is known."""
        with self._lock:
            if steps != self._steps:
                self._steps = steps
                self._free.notify_all()

    def take(self, process: str) -> int | None:
        """Wait for a step that this process is to make; None: the epoch is over."""
        with self._lock:
            while not self._closed and self._error is None:
                step = next((step for step in self._again if process not in self._asked[step].by), None)
                fit = max(self._most_bytes // self.largest_bytes, LEAST_AHEAD) if self.largest_bytes else self._ahead
                if step is not None:
                    self._again.remove(step)
                elif self._next < min(self._steps, self._wanted + min(self._ahead, fit)):
                    step, self._next = self._next, self._next + 1
                    self._asked[step] = _Asked()
                else:
                    self._free.wait(LOOK_EVERY_S)
                    continue
                self._asked[step].by.append(process)
                self._asked[step].at = self._clock()
                return step
        return None

    def came(self, step: int, batch: Any, size: int = 0) -> None:
        """Hand the rank the batch of a step, or the error that it gets instead. A second answer is dropped.

        Args:
            size: bytes of the batch.
        """
        with self._lock:
            if self._closed or step not in self._asked:
                return
            self.largest_bytes, self._heard_at = max(self.largest_bytes, size), self._clock()
            self._took_s.append(self._heard_at - self._asked[step].at)
            self._put(step, batch)

    def _put(self, step: int, batch: Any) -> None:
        del self._asked[step]
        if step in self._again:
            self._again.remove(step)
        self._come[step] = batch
        if step == self._wanted:
            self._here.notify()

    def broke(self, step: int, process: str, what: object) -> None:
        """Have another process make the step: this one's connection has ended."""
        with self._lock:
            if self._closed:
                return
            self._problems[process] = str(what)
            if step not in self._asked:  # another answer has come
                return
            asked = self._asked[step]
            asked.by.remove(process)
            if self._clock() - asked.broke_at >= BREAKS_APART_S:
                asked.breaks, asked.broke_at = asked.breaks + 1, self._clock()
            if asked.breaks >= MOST_BREAKS:
                error = f"{asked.breaks} feed processes ended while they made batch {step} of this rank"
                error += (
                    ": does one of its samples, or of the next batch's, crash them, or is there too little memory? "
                )
                self._put(step, SampleError(error + "See their hosts' logs"))
            elif not asked.by and step not in self._again:
                self._again.append(step)
            self._free.notify_all()

    def fail(self, error: Exception) -> None:
        """Give the rank this error: nothing more can come."""
        with self._lock:
            self._error = self._error or error
            self._here.notify_all()
            self._free.notify_all()

    def problem(self, process: str, what: object) -> None:
        """Note why a process cannot be asked now, for the error at the deadline; empty: it can."""
        with self._lock:
            self._problems[process] = str(what)

    def close(self) -> None:
        """End the epoch: the rank wants no more batches, and connections get no more steps."""
        with self._lock:
            self._closed = True
            self._come.clear()
            self._here.notify_all()
            self._free.notify_all()

    def wait(self, step: int) -> Any:
        """Wait for the batch of a step; steps are asked for in order.

        Raises:
            SampleError: the dataset raised.
            DeadlineError: no server has made progress for too long.
        """
        with self._lock:
            began = self._clock()
            if self._wanted != step:
                self._wanted = step
                self._free.notify_all()
            while step not in self._come:
                if self._error is not None:
                    raise self._error
                if self._clock() - max(began, self._heard_at) > self._limit_s:
                    problems = "; ".join(f"{who}: {what}" for who, what in sorted(self._problems.items()) if what)
                    what = f"batch {step} has not come from the feed servers within {self._limit_s:g} s"
                    raise DeadlineError(f"{what} ({problems or 'all answered'})")
                self._ask_again_if_late(step)
                self._here.wait(LOOK_EVERY_S)
            if isinstance(self._come[step], Exception):
                raise self._come[step]
            batch = self._come.pop(step)
            self._wanted = step + 1
            self._free.notify()  # one more batch may be asked for
            return batch

    def _ask_again_if_late(self, step: int) -> None:
        asked = self._asked.get(step)
        patience_s = max(FIRST_PATIENCE_S, PATIENCE * max(self._took_s, default=0.0))
        if asked and asked.by and step not in self._again and self._clock() - asked.at > patience_s:
            self._again.append(step)
            self._free.notify_all()
