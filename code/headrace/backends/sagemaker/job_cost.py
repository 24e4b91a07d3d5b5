"""Compute a job's cost in dollars, show it, and ask the user to agree to it."""

from __future__ import annotations

import sys

from headrace.errors import InputError
from headrace.job.instances import InstanceTable
from headrace.job.spec import JobSpec
from headrace.terminal.display import ask
from headrace.terminal.tables import aligned

SECONDS_PER_HOUR = 3600.0
ASKS_FROM_USD = 10.0
"""Dollars. If a job can cost more, or its price is not known, `headrace submit` asks before it submits the job."""


def hourly_usd(spec: JobSpec, table: InstanceTable) -> dict[str, float | None]:
    """Return dollars per hour by group; None for a type without a known price."""
    kinds = {group.name: table.get(group.instance_type) for group in spec.groups}
    prices = {name: kind.usd_per_hour if kind else None for name, kind in kinds.items()}
    return {group.name: None if (price := prices[group.name]) is None else group.count * price for group in spec.groups}


def cost_usd(spec: JobSpec, table: InstanceTable, seconds: float) -> float | None:
    """Return dollars for all hosts over `seconds`; None if a price is not known. Storage is not counted.

    SageMaker bills every host for the job's whole time (`BillableTimeInSeconds` times the hosts).
    """
    hourly = hourly_usd(spec, table).values()
    if None in hourly:
        return None
    return sum(price for price in hourly if price is not None) * seconds / SECONDS_PER_HOUR


def describe_cost(spec: JobSpec, table: InstanceTable, max_run_s: int, spot: bool) -> str:
    """Return lines of text: each group's hosts, processors and price, and the most that the job can cost."""
    rows = []
    for group, price in zip(spec.groups, hourly_usd(spec, table).values(), strict=True):
        kind = table.get(group.instance_type)
        has = f"{kind.vcpus} vCPU" + (f" + {kind.gpus} {kind.gpu}" if kind.gpus else "") if kind else "not in the table"
        money = f"{price:8.2f} USD/h" if price is not None else "price unknown: give --price or --prices"
        rows.append((f"  {group.name}", f"{group.count} × {group.instance_type}", has, money))
    lines = aligned(rows)
    most = cost_usd(spec, table, max_run_s)
    if most is not None:
        hourly = most * SECONDS_PER_HOUR / max_run_s
        lines.append(
            f"  at most {most:.2f} USD: {hourly:.2f} USD/h for --max_run {max_run_s} s"
            + (" (spot instances cost less)" if spot else "")
        )
    lines.append(f"  {table.dated}, storage not counted")
    return "\n".join(lines)


def ask_to_agree(most_usd: float | None, max_run_s: int) -> None:
    """Ask the user to agree to a costly job. Raise `InputError` if the answer is no, or if there is no terminal."""
    if most_usd is not None and most_usd <= ASKS_FROM_USD:
        return
    cost = "has no known price" if most_usd is None else f"can cost {most_usd:.2f} USD (--max_run {max_run_s} s)"
    if not sys.stdin.isatty():
        raise InputError(f"this job {cost}; add --yes to submit it, lower --max_run, or give a missing --price")
    if not ask(f"This job {cost}. Submit it? [y/N] "):
        raise InputError("not submitted")
