"""The ideal step: a training step that never waits for data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST_STEPS, MANY_STEPS, MOST_STEPS = 2, 40, 400
BUDGET_S = 1.0
"""Seconds to spend on the measurement if a step takes 10 ms or more. At most `MANY_STEPS` steps are measured."""
BUDGET_OF_SHORT_STEPS_S = 0.4
"""Seconds to spend on up to `MOST_STEPS` steps under 10 ms. Brief changes of speed distort a shorter measurement."""
SETTLING = 0.25
"""Settling steps per measured step. They run before the measured steps, because short steps are slower at first. Two
trial steps run before the settling steps, and show how many steps to measure. If only two or three steps are measured,
the trial steps are among them, and no settling steps run."""
_ERROR_OF_MEDIAN = 1.2533 / 1.349
"""Standard error of the median, divided by (interquartile range ÷ √n), for normally distributed values. The standard
error is 1.2533 σ ÷ √n, and the interquartile range is 1.349 σ."""


@dataclass(frozen=True)
class IdealStep:
    """The time of a step on a batch that is already in memory. All fields are 0 if it was not measured."""

    ms: float = 0.0
    error_ms: float = 0.0
    """The standard error of `ms`."""
    cpu_s: float = 0.0
    """CPU seconds of the step on one rank."""

    @classmethod
    def of(cls, times_s: Sequence[float], cpu_s: float) -> IdealStep:
        """Return the ideal step, from the seconds of each measured step and the CPU seconds of all of them together."""
        low, median, high = np.percentile(times_s, [25, 50, 75]) * 1000
        error = _ERROR_OF_MEDIAN * (high - low) / np.sqrt(len(times_s))
        return cls(float(median), float(error), cpu_s / len(times_s))


def steps_to_measure(step_s: float) -> int:
    """Return how many steps of about `step_s` seconds to measure; shorter steps get more."""
    within_budget = min(BUDGET_S / max(step_s, 1e-6), MANY_STEPS)
    of_short_ones = min(BUDGET_OF_SHORT_STEPS_S / max(step_s, 1e-6), MOST_STEPS)
    return int(max(within_budget, of_short_ones, LEAST_STEPS))
