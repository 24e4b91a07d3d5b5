"""How long training waited for a batch."""

from __future__ import annotations

import time

import torch


class Waiting:
    """On the CPU: from the end of a step until its next batch is here."""

    def __init__(self) -> None:
        self._since, self._waited_s = time.perf_counter(), 0.0

    def batch_is_here(self) -> None:
        """The step begins."""
        self._waited_s = time.perf_counter() - self._since

    def step_is_over(self) -> float:
        """Seconds that this step waited for its batch."""
        self._since = time.perf_counter()
        return self._waited_s


class GpuWaiting:
    """On a GPU: how long it had nothing to do before the step.

    Python runs ahead of a GPU: it waits for the next batch while the GPU still works, which costs nothing. So the time
    is the GPU's own, between two events in its queue. It is asked for when the step's work is in the queue; then Python
    is ahead by a step at most.
    """

    def __init__(self) -> None:
        self._over, self._here = self._event(), self._event()

    def batch_is_here(self) -> None:
        """The step begins."""
        self._here = self._event()

    def step_is_over(self) -> float:
        """Seconds that the GPU waited for this step's batch."""
        self._here.synchronize()
        waited_ms = self._over.elapsed_time(self._here)
        self._over = self._event()
        return float(waited_ms) / 1000

    @staticmethod
    def _event() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
