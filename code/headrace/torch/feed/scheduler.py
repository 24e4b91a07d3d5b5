"""A schedule, which assigns batches to connections. It uses no sockets; the connections' threads call it.

A batch's number is its step. A free connection takes the next step, so a fast server makes more batches. If a
connection breaks, or a batch is late, the batch is requested on a second connection. The first answer counts.
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
"""Default limit in bytes on the batches that a rank has requested and not used yet. By default, `LEAST_AHEAD` batches
may be requested even if their size exceeds this limit."""
MOST_BREAKS, BREAKS_APART_S = 5, 0.5
"""A batch fails after `MOST_BREAKS` broken connections. Breaks within `BREAKS_APART_S` seconds count as one."""
FIRST_PATIENCE_S, PATIENCE, LATELY = 2.0, 5.0, 32
"""A batch is requested again after max(`FIRST_PATIENCE_S`, `PATIENCE` × the slowest of the last `LATELY` batches)."""
LOOK_EVERY_S = 0.25


@dataclass
class _Asked:
    by: list[str] = field(default_factory=list)
    """The processes that make the step's batch."""
    at: float = 0.0
    """Time of the last request, by the schedule's clock."""
    breaks: int = 0
    broke_at: float = -BREAKS_APART_S


class Schedule:
    """The steps of one epoch, or of one shard of a stream. The threads of a rank's connections receive the batches; the
    rank takes them in order.

    Args:
        request: returns the request for the batch of a step.
        known: returns how many of the epoch's steps can be requested now.
        limit_s: seconds that the rank waits for a batch while no server makes progress.
        most_bytes: limit on the bytes of batches that are requested and not yet used.
        ahead: limit on the number of batches that are requested and not yet used; `more_ahead` raises it.
        largest_bytes: bytes of the largest batch of an earlier epoch; 0: unknown.
        least_ahead: number of batches that may be requested and not yet used, even if they exceed `most_bytes`.
        name: returns a step's name for error messages.
    """

    def __init__(
        self,
        request: Callable[[int], Any],
        known: Callable[[], int],
        limit_s: float,
        most_bytes: int,
        ahead: int = 0,
        largest_bytes: int = 0,
        least_ahead: int = LEAST_AHEAD,
        name: Callable[[int], str] = "batch {} of this rank".format,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.request, self._known, self._steps = request, known, known()
        self._ahead, self._least_ahead, self._most_bytes, self._name = ahead, least_ahead, most_bytes, name
        self._limit_s, self._clock = limit_s, clock
        self._lock = threading.RLock()  # reentrant: a signal handler of the rank may call close at any time
        self._here = threading.Condition(self._lock)  # the rank waits on this for its batch
        self._free = threading.Condition(self._lock)  # connections wait on this for a step that they can request
        self._next = self._wanted = 0
        self.largest_bytes = largest_bytes
        self._asked: dict[int, _Asked] = {}
        self._again: deque[int] = deque()
        self._come: dict[int, Any] = {}
        self._error: Exception | None = None
        self.closed = False
        self._took_s: deque[float] = deque(maxlen=LATELY)
        self._problems: dict[str, str] = {}
        self._heard_at = clock()

    def more_ahead(self, count: int) -> None:
        """Raise the limit `ahead` by `count` batches, so that the workers of one more server have enough requests."""
        with self._lock:
            self._ahead += count
            self._free.notify_all()

    def take(self, process: str, wait: bool = True) -> int | None:
        """Assign a step to this process, and return it. Return None if the epoch is over.

        If no step can be requested now, wait for one, or return None if `wait` is false.
        """
        with self._lock:
            while not self.closed and self._error is None:
                step = next((step for step in self._again if process not in self._asked[step].by), None)
                ahead = self._ahead
                if self.largest_bytes:
                    ahead = min(ahead, max(self._most_bytes // self.largest_bytes, self._least_ahead))
                if step is not None:
                    self._again.remove(step)
                elif self._next < min(self._steps, self._wanted + ahead):
                    step, self._next = self._next, self._next + 1
                    self._asked[step] = _Asked()
                elif wait:
                    self._free.wait(LOOK_EVERY_S)
                    continue
                else:
                    break
                self._asked[step].by.append(process)
                self._asked[step].at = self._clock()
                return step
        return None

    def came(self, step: int, batch: Any, size: int = 0) -> None:
        """Pass a step's answer to the rank: a batch of `size` bytes, or an error. Only a step's first answer counts."""
        with self._lock:
            if self.closed or step not in self._asked:
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

    def hear(self) -> None:
        """Record that a server makes progress."""
        self._heard_at = self._clock()

    def broke(self, step: int, process: str, what: object) -> None:
        """Record that the connection to a process ended or was silent too long. Let another process make the step."""
        with self._lock:
            if self.closed:
                return
            self._problems[process] = str(what)
            if step not in self._asked:  # another process has answered
                return
            asked = self._asked[step]
            asked.by.remove(process)
            if self._clock() - asked.broke_at >= BREAKS_APART_S and not isinstance(what, TimeoutError):
                asked.breaks, asked.broke_at = asked.breaks + 1, self._clock()
            if asked.breaks >= MOST_BREAKS:
                error = (
                    f"{asked.breaks} workers ended while they made {self._name(step)}: does a sample of this batch or "
                    "of the next one crash them, or is there too little memory? See their hosts' logs"
                )
                self._put(step, SampleError(error))
            elif not asked.by and step not in self._again:
                self._again.append(step)
            self._free.notify_all()

    def fail(self, error: Exception) -> None:
        """End the epoch with an error, which the rank raises."""
        with self._lock:
            self._error = self._error or error
            self._here.notify_all()
            self._free.notify_all()

    def problem(self, process: str, what: object) -> None:
        """Record why a process is unavailable, or '' if it is available. `next` quotes this in its `DeadlineError`."""
        with self._lock:
            self._problems[process] = str(what)

    def close(self) -> None:
        """End the epoch: connections get no more steps, and batches not taken yet are dropped."""
        with self._lock:
            self.closed = True
            self._come.clear()
            self._here.notify_all()
            self._free.notify_all()

    def next(self) -> Any:
        """Wait for the next step's batch, and return it.

        Raises:
            SampleError: the dataset raised.
            DeadlineError: no server has made progress for `limit_s` seconds.
        """
        with self._lock:
            began, step, known = self._clock(), self._wanted, self._known()
            if known != self._steps:
                self._steps = known
                self._free.notify_all()
            while step not in self._come:
                if self._error is not None:
                    raise self._error
                if self._clock() - max(began, self._heard_at) > self._limit_s:
                    problems = "; ".join(f"{who}: {what}" for who, what in sorted(self._problems.items()) if what)
                    what = f"{self._name(step)} has not come from the feed servers within {self._limit_s:g} s"
                    raise DeadlineError(f"{what} ({problems or 'no problem is known'}): see the data hosts' logs")
                self._ask_again_if_late(step)
                self._here.wait(LOOK_EVERY_S)
            if isinstance(self._come[step], Exception):
                raise self._come[step]
            batch = self._come.pop(step)
            self._wanted = step + 1
            self._free.notify()  # one more batch may be requested
            return batch

    def _ask_again_if_late(self, step: int) -> None:
        asked = self._asked.get(step)
        patience_s = max(FIRST_PATIENCE_S, PATIENCE * max(self._took_s, default=0.0))
        if asked and asked.by and step not in self._again and self._clock() - asked.at > patience_s:
            self._again.append(step)
            self._free.notify_all()
