"""The verdict in a sentence or two: did training wait for data, and which run was the better deal."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.cluster.topology import DATA_GROUP
from headrace.job.limits import COPYING, INPUT_BOUND_FROM, PROCESS, REMEDIES, gpu_busy_share, limited_by
from headrace.report.advice import HARDLY_WAITS
from headrace.report.run_cost import Price
from headrace.report.runs import unlike, waited_share, was_interrupted


def verdict(summaries: Sequence[Mapping[str, Any]], prices: Sequence[Price | None]) -> list[str]:
    """Return a line for each run, then lines on what further runs of the same script and batch gain over the first."""
    lines = [_of_one(summary) for summary in summaries]
    first, first_price = summaries[0], prices[0]
    for summary, price in zip(summaries[1:], prices[1:], strict=True):
        if not (summary["samples_per_s"] and first["samples_per_s"]):
            continue
        if why := unlike(summary, first):
            lines.append(f"{summary['job_name']} is not compared with {first['job_name']}: {why}.")
            continue
        times = summary["samples_per_s"] / first["samples_per_s"]
        line = f"{summary['job_name']} trains {_times(times)} {first['job_name']}"
        if price and first_price and price.usd_per_million and first_price.usd_per_million:
            change = price.usd_per_million / first_price.usd_per_million - 1
            much = f"{abs(change):.0%} {'less' if change < 0 else 'more'}" if abs(change) >= 0.005 else "as much"
            line += f", and a sample costs {much}"
        lines.append(line + ".")
    return lines


def _of_one(summary: Mapping[str, Any]) -> str:
    name, cause = summary["job_name"], summary.get("root_cause")
    if was_interrupted(summary):
        return f"{name} was interrupted after {summary['steps']} steps."
    if cause:
        return f"{name} failed: {cause['role']} on {cause['host']}: {cause['message']}"
    if not summary["steps"]:
        return f"{name} {summary['outcome']} and measured no step."
    share = waited_share(summary)
    if share is None:
        return f"{name} has not measured its ideal step time, so how long it waited for data is not known."
    limit = limited_by(summary)
    if share > INPUT_BOUND_FROM and limit in (COPYING, PROCESS):
        return f"{name}'s steps lost {share:.0%} of their time, and the limit is {limit}. {REMEDIES[limit]}"
    if share > INPUT_BOUND_FROM:
        return f"{name} is input-bound: it waited for data {share:.0%} of its time."
    has_data_hosts = any(host["group"] == DATA_GROUP for host in summary["hosts"].values())
    little = share > HARDLY_WAITS
    folder = shlex.quote(str(getattr(summary, "folder", name)))
    without = f"`headrace plan {folder}` says whether data hosts pay." if little else "Data hosts could hardly help it."
    lost = [host for host, record in summary["hosts"].items() if record.get("lost")]
    keep_up = f"{' and '.join(lost)} {'was' if len(lost) == 1 else 'were'} lost." if lost else "Its data hosts keep up."
    more = keep_up if has_data_hosts else without
    if limit in REMEDIES:
        busy = f" (busy for {gpu_busy_share(summary) or 0:.0%} of a step)" if limit == PROCESS else ""
        more += f" The limit is {limit}, not the GPU{busy}. " if busy else f" The limit is {limit}. "
        more += REMEDIES[limit]
    return f"{name} is not input-bound: it waited for data {share:.0%} of its time. {more}"


def _times(times: float) -> str:
    return f"{times:.2f} times as fast as" if abs(times - 1) >= 0.005 else "as fast as"
