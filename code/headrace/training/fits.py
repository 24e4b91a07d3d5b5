"""Figures of a run over all its trainings (fits).

Most runs have one training; transfer learning has two. A job is paid for as a whole, so its figures cover all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.training.step_cpu import StepCpu
from headrace.training.step_times import StepTimes, spread_ms


@dataclass
class Fit:
    """Counts and measurements of one training, from its beginning to its end."""

    times: StepTimes = field(default_factory=StepTimes)
    cpu: StepCpu = field(default_factory=StepCpu)
    steps: int = 0
    epochs: int = 0
    longest_epoch: int = 0
    """Number of steps of the longest epoch, reported as the steps per epoch, since other epochs may be cut short."""
    train_s: float = 0.0
    """Seconds from the beginning of training to the latest report. Rank 0 writes the last report when training ends."""
    knows_waited_cpu: bool = False

    def compute_cpu_s(self) -> float:
        """Return the CPU seconds of a step on this rank, without the time to make its batch; 0: not known."""
        if self.times.ideal.ms:
            return self.times.ideal.cpu_s
        return self.cpu.outside_waiting_s() if self.knows_waited_cpu else 0.0

    def step_ms(self) -> float:
        return self.times.all.mean_ms()

    def computing_ms(self) -> float:
        """Return the ms of a step without its waiting. If not known, return `mean_ideal_ms`, or else `step_ms`."""
        return self.times.all.without_waiting_ms() or self.times.mean_ideal_ms() or self.step_ms()


def together(fits: Sequence[Fit]) -> dict[str, Any]:
    """Return the trainer's report of all these trainings: sums of counts, and means of measurements over all steps."""
    fits = [fit for fit in fits if fit.steps] or fits[-1:]
    with_ideal = [fit for fit in fits if fit.times.ideal_ms()]
    # "measured": on a batch in memory; "waits": estimated from the waits of steps.
    ideal_from = "measured" if all(fit.times.ideal.ms for fit in with_ideal) else "waits"
    waits_for_nothing_ms = _mean(lambda fit: fit.times.mean_ideal_ms(), with_ideal)
    step_ms = _mean(Fit.step_ms, with_ideal)
    return {
        "train_s": round(sum(fit.train_s for fit in fits), 3),
        "epochs": sum(fit.epochs for fit in fits),
        "steps": sum(fit.steps for fit in fits),
        "steps_per_epoch": max(fit.longest_epoch for fit in fits),
        "first_step_s": round(sum(fit.times.first_s for fit in fits), 3),
        "step_time_ms": spread_ms([fit.times for fit in fits]),
        "ideal_step_time_ms": round(_mean(lambda fit: fit.times.ideal_ms(), with_ideal), 3),
        "between_steps_ms": round(_mean(lambda fit: fit.times.all.between_ms(), fits), 3),
        "ideal_step_time_error_ms": round(_mean(lambda fit: fit.times.ideal.error_ms, with_ideal), 3),
        "ideal_step_from": ideal_from if with_ideal else "",
        "step_parts_ms": step_parts_ms(fits),
        "input_bound_share": round(min(max(1 - waits_for_nothing_ms / step_ms, 0.0), 1.0), 4) if step_ms else 0.0,
        "rank_cpu_s_per_step": round(_mean_of_known(lambda fit: fit.cpu.per_step_s(), fits), 6),
        "compute_cpu_s_per_step": round(_mean_of_known(Fit.compute_cpu_s, fits), 6),
    }


def step_parts_ms(fits: Sequence[Fit]) -> dict[str, float | None]:
    """Return the parts of a step in milliseconds; they add up to the mean step.

    `waiting`: the wait for the batch. If it was not measured, it is estimated as step time minus `mean_ideal_ms`.
    `copying`: the wait for the batch's copy to the GPU. None if it is not known; then `waiting` includes it.
    `computing`: the rest, such as Python, kernel launches and arithmetic.
    """
    step_ms = _mean(Fit.step_ms, fits)
    computing_ms = min(_mean(Fit.computing_ms, fits), step_ms)
    copying_ms = [fit.times.all.copying_ms() for fit in fits]
    known_ms = None if None in copying_ms else _mean(lambda fit: fit.times.all.copying_ms() or 0.0, fits)
    waiting_ms = step_ms - computing_ms - (known_ms or 0.0)
    return {
        "waiting": round(max(waiting_ms, 0.0), 3),
        "copying": None if known_ms is None else round(known_ms, 3),
        "computing": round(computing_ms, 3),
    }


def _mean_of_known(figure: Callable[[Fit], float], fits: Sequence[Fit]) -> float:
    return _mean(figure, [fit for fit in fits if figure(fit)])


def _mean(figure: Callable[[Fit], float], fits: Sequence[Fit]) -> float:
    """Return a figure's mean over all steps of these trainings; 0 if there are no trainings."""
    weights = [max(fit.times.all.steps, 1) for fit in fits]
    return float(np.average([figure(fit) for fit in fits], weights=weights)) if fits else 0.0
