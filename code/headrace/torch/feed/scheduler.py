"""Which batches are asked for, of whom, and which have come. No sockets: threads come and ask.

Batches are numbered by their step. Each connection takes the next one when it is free, so a fast server makes more. One
whose connection breaks is asked for again elsewhere; so is one that the rank waits for too long, since whoever makes it
makes the same. The first answer counts.
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

MOST_BREAKS, BREAKS_APART_S = 5, 0.5
"""So many processes that end while they make one batch are no accident; those that end together count once."""
FIRST_PATIENCE_S, PATIENCE = 2.0, 5.0
"""A batch is asked for once more after so many seconds, or so many times what the slowest of late took."""
LATELY = 32
MOST_AHEAD_BYTES, LEAST_AHEAD = 2 << 30, 2
"""A rank holds no more batches than these bytes hold; two it may always hold."""
LOOK_EVERY_S = 0.25


@dataclass
class _Asked:
    of: list[str] = field(default_factory=list)
    """The processes that make it."""
    at: float = 0.0
    """When it was asked for last; monotonic."""
    breaks: int = 0
    broke_at: float = -BREAKS_APART_S


class Tasks:
    """The steps of an epoch between a rank, which takes them in order, and its connections.

    Args:
        steps: how many there are; grows with `up_to`.
        ahead: how many may be asked for and not yet taken; grows with `more_connections`.
        limit_s: how long the rank waits while nothing comes.
    """

    def __init__(self, steps: int, ahead: int, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._steps, self._ahead, self._limit_s, self._clock = steps, ahead, limit_s, clock
        self._lock = threading.RLock()  # a signal handler of the rank may close
        self._here = threading.Condition(self._lock)  # the rank waits for its batch
        self._free = threading.Condition(self._lock)  # connections wait for a step to make
        self._next = self._wanted = 0
        self._under_way: dict[int, _Asked] = {}
        self._again: deque[int] = deque()
        self._come: dict[int, Any] = {}
        self._error: Exception | None = None
        self._closed = False
        self._largest = 0
        self._took_s: deque[float] = deque(maxlen=LATELY)
        self._problems: dict[str, str] = {}
        self._last_came = clock()

    # For connections

    def more_connections(self, count: int) -> None:
        """There are so many more to keep busy."""
        with self._lock:
            self._ahead += count
            self._free.notify_all()

    def up_to(self, steps: int) -> None:
        """There are so many steps, as far as is known."""
        with self._lock:
            if steps != self._steps:
                self._steps = steps
                self._free.notify_all()

    def take(self, process: str) -> int | None:
        """The step that this process is to make next; None: no more."""
        with self._lock:
            while not self._closed and self._error is None:
                for step in self._again:
                    if process not in self._under_way[step].of:
                        self._again.remove(step)
                        return self._ask(step, process)
                room = max(MOST_AHEAD_BYTES // self._largest, LEAST_AHEAD) if self._largest else self._ahead
                if self._next < min(self._steps, self._wanted + min(self._ahead, room)):
                    self._next += 1
                    self._under_way[self._next - 1] = _Asked()
                    return self._ask(self._next - 1, process)
                self._free.wait(LOOK_EVERY_S)
        return None

    def _ask(self, step: int, process: str) -> int:
        asked = self._under_way[step]
        asked.of.append(process)
        asked.at = self._clock()
        return step

    def came(self, step: int, batch: Any, size: int = 0) -> None:
        """The batch of this step is here, or the error that the rank gets in its place; a second one is dropped.

        Args:
            size: bytes.
        """
        with self._lock:
            self._largest = max(self._largest, size)
            asked = self._under_way.pop(step, None)
            if asked is None:
                return
            if step in self._again:
                self._again.remove(step)
            now = self._last_came = self._clock()
            self._took_s.append(now - asked.at)
            self._come[step] = batch
            if step == self._wanted:
                self._here.notify()

    def broke(self, step: int, process: str, what: object) -> None:
        """The connection ended while this process made it."""
        with self._lock:
            self._problems[process] = str(what)
            asked = self._under_way.get(step)
            if asked is None:
                return
            asked.of.remove(process)
            if self._clock() - asked.broke_at >= BREAKS_APART_S:
                asked.breaks, asked.broke_at = asked.breaks + 1, self._clock()
            if asked.breaks >= MOST_BREAKS:
                self._under_way.pop(step)
                if step in self._again:
                    self._again.remove(step)
                self._come[step] = SampleError(
                    f"{asked.breaks} feed processes ended while they made batch {step} of this rank: does one of its "
                    "samples, or of the next batch's, crash them, or is there too little memory? Their hosts' logs tell"
                )
            elif not asked.of and step not in self._again:
                self._again.append(step)
            self._all_look()

    def fail(self, error: Exception) -> None:
        """Nothing more can come; the rank gets the error."""
        with self._lock:
            self._error = self._error or error
            self._all_look()

    def problem(self, process: str, what: object) -> None:
        """Why this process cannot be asked just now; empty when it can."""
        with self._lock:
            self._problems[process] = str(what)

    def close(self) -> None:
        """The rank takes no more."""
        with self._lock:
            self._closed = True
            self._come.clear()
            self._all_look()

    def _all_look(self) -> None:
        self._here.notify_all()
        self._free.notify_all()

    # For the rank

    def wait(self, step: int) -> Any:
        """The batch of this step, which is the next one.

        Raises:
            SampleError: the dataset raised.
            DeadlineError: nothing came for too long.
        """
        with self._lock:
            began = self._clock()
            if self._wanted != step:
                self._wanted = step
                self._free.notify_all()
            while step not in self._come:
                if self._error is not None:
                    raise self._error
                if self._clock() - max(began, self._last_came) > self._limit_s:
                    raise DeadlineError(self._late(step))
                self._ask_again_if_late(step)
                self._here.wait(LOOK_EVERY_S)
            if isinstance(self._come[step], Exception):
                raise self._come[step]
            batch = self._come.pop(step)
            self._wanted = step + 1
            self._free.notify()  # there is room for one more
            return batch

    def _ask_again_if_late(self, step: int) -> None:
        asked = self._under_way.get(step)
        patience_s = max(FIRST_PATIENCE_S, PATIENCE * max(self._took_s, default=0.0))
        if asked and asked.of and step not in self._again and self._clock() - asked.at > patience_s:
            self._again.append(step)
            self._free.notify_all()

    def _late(self, step: int) -> str:
        told = "; ".join(f"{process}: {what}" for process, what in sorted(self._problems.items()) if what)
        return f"batch {step} has not come from the feed servers within {self._limit_s:g} s ({told or 'all answered'})"
