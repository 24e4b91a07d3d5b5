"""What a step costs of the CPU on a rank, with the processes that make its batches."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

import psutil

aside: list[Callable[[], float]] = []
"""What tells the CPU seconds, so far, of descendants that are no part of training."""


class StepCpu:
    """CPU seconds of the steps of all epochs; the first step of each, which finds nothing ready, is left out."""

    def __init__(self) -> None:
        self._began: tuple[float, float] | None = None
        self._steps = self._pending = 0
        self._waited_s = 0.0
        self._spent_s = self._own_s = 0.0

    def made(self, steps: int, waited_s: float = 0.0) -> None:
        """So many steps are made; `waited_s`: CPU seconds of this process while it waited for their batches."""
        if self._began is None:
            self._began = _now()
        else:
            self._pending += steps
            self._waited_s += waited_s

    def over(self) -> None:
        """What comes until the next step is none of it: an evaluation, a checkpoint."""
        self._take()
        self._began = None

    def per_step_s(self) -> float:
        """CPU seconds of this process and its descendants a step; 0: none was measured."""
        self._take()
        return self._spent_s / self._steps if self._steps else 0.0

    def outside_waiting_s(self) -> float:
        """CPU seconds a step of this process alone, without those of waiting."""
        self._take()
        return max(self._own_s - self._waited_s, 0.0) / self._steps if self._steps else 0.0

    def _take(self) -> None:
        if self._began is None or not self._pending:
            return
        (spent_s, own_s), began = _now(), self._began
        self._spent_s += max(spent_s - began[0], 0.0)
        self._own_s += own_s - began[1]
        self._steps += self._pending
        self._began, self._pending = (spent_s, own_s), 0


def with_ended_s(pid: int) -> float:
    """CPU seconds of a descendant and of those of its own that have ended; a fork server's end below it."""
    try:
        return float(sum(psutil.Process(pid).cpu_times()[:4]))
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0.0


def _now() -> tuple[float, float]:
    """CPU seconds of this process with its descendants, ended ones too, and of itself."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    living_s = sum(with_ended_s(each.pid) for each in psutil.Process().children(recursive=True))
    own_s = time.process_time()
    return own_s + ended.ru_utime + ended.ru_stime + living_s - sum(each() for each in aside), own_s
