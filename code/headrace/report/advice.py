"""Choose the best of the candidate jobs, and give the reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import InputError
from headrace.job.limited_by import REMEDIES
from headrace.report.candidates import NEARLY, Option, cheapest, fastest, worth_showing

HARDLY_WAITS = 0.05
"""If waiting for data takes at most this share of the time, advise data hosts only to meet a budget or time limit."""
_ROUNDED = 1.0005
"""Factor that raises hours and dollars in a message. Without it, rounding could make them too low to use as limits."""


@dataclass(frozen=True)
class Advice:
    """The job to run, the jobs to show for comparison, and the reasons for the choice."""

    choice: Option
    alone: Option
    """The job without data hosts."""
    cheapest: Option
    fastest: Option
    shown: tuple[Option, ...]
    lines: tuple[str, ...]

    def marks(self, option: Option) -> str:
        """Return the words that mark an option in the table, such as `cheapest`."""
        named = {"→": self.choice, "cheapest": self.cheapest, "fastest": self.fastest}
        if self.alone.usd_per_hour is None:
            del named["cheapest"]
        return " ".join(name for name, each in named.items() if each == option)


def advise(
    found: Sequence[Option],
    samples: float,
    budget_usd: float | None,
    max_hours: float | None,
    alone_waits: float | None = None,
    computing_limit: str = "",
) -> Advice:
    """Return which option to choose, and why. The first option in `found` has no data hosts.

    Args:
        samples: number of samples in the whole planned training.
        budget_usd: limit on that training's cost in dollars; the fastest job within this budget is advised.
        max_hours: limit on that training's hours. The cheapest job within this limit is advised; without prices, the
            smallest one; with a budget, the fastest one.
        alone_waits: share of the measured run's time spent waiting for data; None if that run had data hosts.
        computing_limit: what limits a step that does not wait for data.

    Raises:
        InputError: no option is within the limits, or a budget is given and prices are not known.
    """
    alone, least, quickest = found[0], cheapest(found), fastest(found)
    allowed = list(found)
    if budget_usd is not None:
        if alone.usd_per_hour is None:
            raise InputError("--budget_usd needs prices: give --as TYPE for a simulated run, --prices for others")
        allowed = [each for each in allowed if (each.cost_usd(samples) or 0.0) <= budget_usd]
    if max_hours is not None:
        allowed = [each for each in allowed if each.hours(samples) <= max_hours]
    if not allowed:
        price = f" and ${(least.cost_usd(samples) or 0.0) * _ROUNDED:.4g}" if least.usd_per_hour is not None else ""
        raise InputError(
            f"no job keeps within these limits: the cheapest takes {least.hours(samples) * _ROUNDED:.4g} h{price}, "
            f"the fastest {quickest.hours(samples) * _ROUNDED:.4g} h; raise a limit"
        )
    waits = alone.input_bound_share if alone_waits is None else min(alone.input_bound_share, alone_waits)
    if alone in allowed and waits <= HARDLY_WAITS:
        choice = alone
    elif max_hours is not None and alone.usd_per_hour is None:
        choice = min(allowed, key=lambda each: (each.hosts, each.prediction.step_s))
    else:
        by_speed = budget_usd is not None or alone.usd_per_hour is None
        choice = fastest(allowed) if by_speed else cheapest(allowed)
    shown = {id(each): each for each in (alone, *worth_showing(found), least, quickest, choice)}
    rows = sorted(shown.values(), key=lambda each: -each.prediction.step_s)
    reasons = _reasons(choice, found, waits)
    if computing_limit in REMEDIES and computing_limit in (choice.prediction.limit, alone.prediction.limit):
        reasons.append(f"Steps that do not wait for data are limited by {computing_limit}. {REMEDIES[computing_limit]}")
    return Advice(choice, alone, least, quickest, tuple(rows), tuple(reasons))


def _reasons(choice: Option, found: Sequence[Option], waits: float) -> list[str]:
    alone = found[0]
    if choice.data_hosts:
        hosts = f"{choice.data_hosts} × {choice.data_type or 'data host'}"
        times = alone.prediction.step_s / choice.prediction.step_s
        return [
            f"Rent {hosts}: {times:.2f} times as fast as without data hosts{_price_of(choice, alone)}. "
            f"The steps are then limited by {choice.prediction.limit}."
        ]
    if waits <= HARDLY_WAITS:
        return [f"Don't add data hosts: the training spends only {waits:.0%} of its time waiting for data."]
    best = min(found[1:], key=lambda each: each.prediction.step_s)
    times = alone.prediction.step_s / best.prediction.step_s
    if times <= NEARLY:
        return [f"Don't add data hosts: training gets no faster, since {best.prediction.limit} would limit it."]
    quickest = fastest(found)
    times = alone.prediction.step_s / quickest.prediction.step_s
    return [
        "Don't add data hosts. Either they cost more than they save, or they exceed your budget, or the job is fast "
        f"enough without them. With the fastest choice of data hosts, training is {times:.2f} times as fast"
        f"{_price_of(quickest, alone)}."
    ]


def _price_of(option: Option, than: Option) -> str:
    """Return a phrase that compares the option's price per sample with that of `than`; empty without prices."""
    theirs, ours = option.usd_per_million, than.usd_per_million
    if theirs is None or not ours:
        return ""
    change = theirs / ours - 1
    if abs(change) < NEARLY - 1:
        return ", and a sample costs about the same"
    return f", {abs(change):.0%} {'cheaper' if change < 0 else 'dearer'} a sample"
