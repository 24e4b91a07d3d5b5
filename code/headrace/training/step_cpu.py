"""CPU time of a step on a rank, including the processes that make its batches."""

from __future__ import annotations

import resource
import time

import psutil


class StepCpu:
    """Measures the CPU time of steps, except each epoch's first step, which begins before a batch is ready."""

    def __init__(self) -> None:
        self._began: tuple[float, float] | None = None
        self._steps = self._pending = 0
        self._waited_s = 0.0
        self._spent_s = self._own_s = 0.0

    def made(self, steps: int, waited_s: float = 0.0) -> None:
        """Count finished steps. `waited_s`: CPU seconds that this process used while it waited for their batches."""
        if self._began is None:
            self._began = _now()
        else:
            self._pending += steps
            self._waited_s += waited_s

    def over(self) -> None:
        """Leave out the CPU time from now until the next step, for example during an evaluation or a checkpoint."""
        self._take()
        self._began = None

    def per_step_s(self) -> float:
        """Return the CPU seconds per step of this process and its descendants; 0: no step was measured."""
        self._take()
        return self._spent_s / self._steps if self._steps else 0.0

    def outside_waiting_s(self) -> float:
        """Return this process's own CPU seconds per step, except while waiting for batches. 0: no step was measured."""
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


def _with_ended_s(pid: int) -> float:
    """Return the CPU seconds of a process and its ended children, such as those of a fork server; 0 if it is gone."""
    try:
        return float(sum(psutil.Process(pid).cpu_times()[:4]))
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0.0


def _now() -> tuple[float, float]:
    """Return `(all, own)` in CPU seconds: `all` includes descendants, even ended ones; `own` is this process alone."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    living_s = sum(_with_ended_s(each.pid) for each in psutil.Process().children(recursive=True))
    own_s = time.process_time()
    return own_s + ended.ru_utime + ended.ru_stime + living_s, own_s
