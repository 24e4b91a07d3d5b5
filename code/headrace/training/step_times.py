"""How long steps took, how much of that they waited for data, and how long one takes that waits for nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.training.ideal_step import IdealStep

MEDIAN_OF = 1000
"""The last so many steps."""


class StepTimes:
    """Of all steps of a run; `recent` steps are the last so many."""

    def __init__(self) -> None:
        self.ideal = IdealStep()
        """As measured before training; all zero where it was not."""
        self._step_s: list[float] = []
        self._first, self._first_s = 1, 0.0
        self._waited_s: list[float] = []
        self._between_s: list[float] = []

    def made(self, count: int, took_s: float, waited_s: float | None, between_s: float) -> None:
        """So many steps were made, in `took_s` together; see `Meter.steps`."""
        if not self._step_s:
            self._first, self._first_s = count, took_s
        self._step_s += [took_s / count] * count
        self._between_s += [between_s / count] * count
        if waited_s is not None:
            self._waited_s += [waited_s / count] * count

    @property
    def without_the_first(self) -> int:
        """All steps but the very first, which waits for the first batch of a cold pipeline: that is start-up.

        With `steps_per_execution` those of the first execution, whose times are not known one by one.
        """
        return max(len(self._step_s) - self._first, 1)

    @property
    def first_s(self) -> float:
        """Seconds of the very first step, or execution; 0: there was none."""
        return self._first_s

    def mean_ms(self, recent: int) -> float:
        """Of a step."""
        return _mean_ms(self._step_s, recent)

    def between_ms(self, recent: int) -> float:
        """What the script took for itself between two steps: its callbacks."""
        return _mean_ms(self._between_s, recent)

    def ideal_ms(self, recent: int) -> float:
        """Milliseconds of a step that waits for nothing; at most what half of the steps have taken.

        Measured before training, with what the script takes between steps; or what waiting leaves of a step.
        """
        ideal_ms, made_s = self.mean_ideal_ms(recent), self._of_median(self._step_s)
        return min(ideal_ms, _median_ms(made_s)) if made_s else ideal_ms

    def mean_ideal_ms(self, recent: int) -> float:
        """The same as a mean, in which a callback counts that is rare and slow.

        What half of the steps have done better, without what the script took between them, counts where the
        measurement was worse.
        """
        if not self.ideal.ms:
            return max(self.mean_ms(recent) - _mean_ms(self._waited_s, recent), 0.0) if self._waited_s else 0.0
        own_s = [step_s - between_s for step_s, between_s in
                 zip(self._of_median(self._step_s), self._of_median(self._between_s), strict=True)]  # fmt: skip
        own_ms = min(self.ideal.ms, _median_ms(own_s)) if own_s else self.ideal.ms
        return own_ms + self.between_ms(recent)

    def input_bound_share(self, recent: int) -> float:
        """1 − ideal ÷ actual; 0 where the ideal step was not measured, as of a model that its first step makes."""
        step_ms, ideal_ms = self.mean_ms(recent), self.mean_ideal_ms(recent)
        return min(max(1 - ideal_ms / step_ms, 0.0), 1.0) if step_ms and ideal_ms else 0.0

    def _of_median(self, times_s: list[float]) -> list[float]:
        """The last ones, without the very first."""
        return times_s[max(len(times_s) - MEDIAN_OF, self._first) :]

    def after_the_first(self) -> list[float]:
        """Seconds of each step but the very first; of all where there are no others."""
        return self._step_s[self._first :] or self._step_s


def spread_ms(runs: Sequence[StepTimes]) -> dict[str, float]:
    """Median, mean and 90th percentile of the steps of all these, in milliseconds, without the very first of each."""
    kept = [step_s for each in runs for step_s in each.after_the_first()]
    times_ms = np.asarray(kept or [0.0]) * 1000
    return {
        "median": round(float(np.median(times_ms)), 3),
        "mean": round(float(np.mean(times_ms)), 3),
        "p90": round(float(np.percentile(times_ms, 90)), 3),
    }


def _median_ms(times_s: Sequence[float]) -> float:
    return max(float(np.median(times_s)), 0.0) * 1000


def _mean_ms(times_s: list[float], recent: int) -> float:
    return float(np.mean(times_s[-recent:])) * 1000 if times_s else 0.0
