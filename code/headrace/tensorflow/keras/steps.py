"""The base class of callbacks that follow the steps of `fit` without delaying a step."""

from __future__ import annotations

import collections
import time
from typing import Any

import keras

Logs = dict[str, Any] | None


class StepCallback(keras.callbacks.Callback):
    """A callback that learns of a step's end when the next step begins, or at the epoch's end.

    For a callback with `on_train_batch_end` that is not `async_safe`, Keras copies each step's results to the host, and
    so waits for the device. This callback is `async_safe`, so Keras may call it in another thread. It notes the time
    when a step ended, and reads no results.
    """

    async_safe = True

    def __init__(self) -> None:
        super().__init__()
        self._ends: collections.deque[tuple[int, float]] = collections.deque()
        self._latest = (0, 0.0)

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._ends.clear()
        self._latest = (0, 0.0)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        self._ends.append((batch + 1, time.perf_counter()))

    def ended(self) -> tuple[int, float]:
        """Return how many steps of this epoch are known to have ended, and when the last of them ended.

        At the epoch's end, all of its steps are known. With `steps_per_execution=8`, Keras reports an epoch of 12 steps
        as two executions of 8 steps, although the second one gets only 4 batches. This method then returns 12, not 16.
        """
        while self._ends:
            self._latest = max(self._latest, self._ends.popleft())
        made, ended_at = self._latest
        return min(made, self.steps_of_epoch() or made), ended_at

    def steps_of_epoch(self) -> int:
        """Return the number of steps that `fit` makes in an epoch; 0 where Keras does not know it."""
        return int((self.params or {}).get("steps") or 0)
