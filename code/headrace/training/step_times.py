"""Step times: their mean and median, the part spent waiting for data, and the ideal time without waiting."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.training.ideal_step import IdealStep

MEDIAN_OF = 1000
"""Number of the latest steps whose times are kept, to compute the exact median of these times."""
SPREAD_OF = 10_000
"""Number of the latest steps whose times are kept, to report their median and 90th percentile."""


@dataclass
class Sums:
    """A number of steps, and their total seconds."""

    steps: int = 0
    step_s: float = 0.0
    waited_s: float | None = None
    """The part of `step_s` spent waiting for batches; None: not known."""
    between_s: float = 0.0
    """The part of `step_s` spent in the script's callbacks between steps. Callbacks do not wait for data."""
    copied_s: float | None = None
    """The part of `waited_s` spent waiting for copies to the GPU; None: not known."""

    def add(self, more: Sums) -> None:
        self.steps += more.steps
        self.step_s += more.step_s
        self.between_s += more.between_s
        if more.waited_s is not None:
            self.waited_s = (self.waited_s or 0.0) + more.waited_s
        if more.copied_s is not None:
            self.copied_s = (self.copied_s or 0.0) + more.copied_s

    def mean_ms(self) -> float:
        return self._mean_ms(self.step_s)

    def between_ms(self) -> float:
        return self._mean_ms(self.between_s)

    def without_waiting_ms(self) -> float:
        """Return the mean time of a step without waiting, in milliseconds; 0: not known."""
        return 0.0 if self.waited_s is None else self._mean_ms(max(self.step_s - self.waited_s, 0.0))

    def copying_ms(self) -> float | None:
        """Return the mean milliseconds that a step waits for the copy to the GPU; None: not known."""
        return None if self.copied_s is None else self._mean_ms(self.copied_s)

    def _mean_ms(self, seconds: float) -> float:
        return seconds / self.steps * 1000 if self.steps else 0.0


class StepTimes:
    """Times of a run's steps. The memory, and the time to compute a figure, do not grow with the number of steps."""

    def __init__(self) -> None:
        self.ideal = IdealStep()
        """The ideal step measured before training. All its fields are 0 if it was not measured."""
        self._first, self._others, self._recent = Sums(), Sums(), Sums()
        self._last: collections.deque[tuple[float, float]] = collections.deque(maxlen=MEDIAN_OF)
        """Two times in seconds for each of the latest steps: with the script's callbacks, and without them."""
        self._latest_s: collections.deque[float] = collections.deque(maxlen=SPREAD_OF)

    def made(self, made: Sums) -> None:
        if not self._first.steps:
            self._first = made
            return
        self._others.add(made)
        self._recent.add(made)
        step_s, own_s = made.step_s / made.steps, (made.step_s - made.between_s) / made.steps
        self._last.extend(itertools.repeat((step_s, own_s), min(made.steps, MEDIAN_OF)))
        self._latest_s.extend(itertools.repeat(step_s, min(made.steps, SPREAD_OF)))

    @property
    def all(self) -> Sums:
        """All steps except the first, which waits for the pipeline to start.

        With `steps_per_execution`, all steps of the first execution are left out, since only their total time is
        known. If there are no other steps, return the first ones.
        """
        return self._others if self._others.steps else self._first

    def take_recent(self) -> Sums:
        """Return the steps since the last call, without the run's first step. If none were made, return `self.all`."""
        recent, self._recent = self._recent, Sums()
        return recent if recent.steps else self.all

    @property
    def first_s(self) -> float:
        """Seconds of the first step. With `steps_per_execution`: seconds of the first execution. 0: no step."""
        return self._first.step_s

    def ideal_ms(self, of: Sums | None = None) -> float:
        """Return the ideal step time in ms: `mean_ideal_ms`, or the median of the latest steps if that is shorter."""
        ideal_ms = self.mean_ideal_ms(of)
        return min(ideal_ms, _median_ms([step_s for step_s, _ in self._last])) if self._last else ideal_ms

    def mean_ideal_ms(self, of: Sums | None = None) -> float:
        """Return the mean time of a step without waiting, in milliseconds. It includes rare, slow callbacks.

        Take the shorter of two times: the measured ideal step, and the latest steps' median without callbacks. Add the
        mean time of callbacks. If no ideal step was measured, return the mean step time minus the waiting. Both means
        cover the steps `of`, by default all steps.
        """
        of = of or self.all
        if not self.ideal.ms:
            return of.without_waiting_ms()
        own_ms = min(self.ideal.ms, _median_ms([own_s for _, own_s in self._last])) if self._last else self.ideal.ms
        return own_ms + of.between_ms()

    def input_bound_share(self, of: Sums) -> float:
        """Return 1 − ideal step time ÷ mean step time, or 0 if the ideal step time is not known."""
        step_ms, ideal_ms = of.mean_ms(), self.mean_ideal_ms(of)
        return min(max(1 - ideal_ms / step_ms, 0.0), 1.0) if step_ms and ideal_ms else 0.0

    def latest_s(self) -> list[float]:
        """Return the seconds of each of the latest steps, without the first step unless it is the only one."""
        return list(self._latest_s) or ([self.all.mean_ms() / 1000] if self.all.steps else [])


def spread_ms(runs: Sequence[StepTimes]) -> dict[str, float]:
    """Return median, mean and 90th percentile (in ms) of the step times of all runs, without each run's first step.

    The mean covers all steps; median and percentile cover each run's latest steps (`SPREAD_OF`).
    """
    latest_s = [step_s for each in runs for step_s in each.latest_s()]
    if not latest_s:
        return {"median": 0.0, "mean": 0.0, "p90": 0.0}
    mean_ms = sum(each.all.step_s for each in runs) / sum(each.all.steps for each in runs) * 1000
    median, p90 = np.percentile(latest_s, [50, 90]) * 1000
    return {"median": round(float(median), 3), "mean": round(mean_ms, 3), "p90": round(float(p90), 3)}


def _median_ms(times_s: Sequence[float]) -> float:
    return max(float(np.median(times_s)), 0.0) * 1000
