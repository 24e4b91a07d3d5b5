"""Compare runs side by side in a table, and say in a few sentences how much faster data hosts make the training."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.cluster.topology import DATA_GROUP
from headrace.job.limited_by import COPYING, INPUT_BOUND_FROM, PROCESS, REMEDIES, gpu_busy_share, limited_by
from headrace.report.advice import HARDLY_WAITS
from headrace.report.run_cost import Price
from headrace.report.runs import accuracy, read_summary, rounded, short, unlike, waited_share, was_interrupted
from headrace.terminal.parser import OneLineParser
from headrace.terminal.tables import as_table

Summary = Mapping[str, Any]


def compare(summaries: Sequence[Summary], prices: Sequence[Price | None] = ()) -> str:
    """Return a table with a column for each run, and ratios to the first run if script and batch size are the same."""
    return as_table([[name, *cells] for name, cells in compare_rows(summaries, prices)])


def compare_rows(summaries: Sequence[Summary], prices: Sequence[Price | None] = ()) -> list[tuple[str, list[str]]]:
    """Return the table's rows. Each has a name, and a cell for each run. The first row holds the runs' names."""
    alike = [not unlike(summary, summaries[0]) for summary in summaries]
    rows = [
        ("", [summary["job_name"] for summary in summaries]),
        ("outcome", ["interrupted" if was_interrupted(summary) else summary["outcome"] for summary in summaries]),
        ("data", [_data(summary) for summary in summaries]),
        ("ranks × batch", [_ranks(summary) for summary in summaries]),
        ("step time, median", [_median(summary) for summary in summaries]),
        ("ideal step time", [_ideal(summary) for summary in summaries]),
        ("waiting for data", [_cell(waited_share(summary), "{:.0%}") for summary in summaries]),
        ("limited by", [limited_by(summary) or "-" for summary in summaries]),
        ("samples/s", _with_ratio([summary["samples_per_s"] for summary in summaries], alike)),
        ("training time", [_cell(summary["train_s"] or None, "{:.0f} s") for summary in summaries]),
        ("first step after", [_cell(summary["time_to_first_step_s"] or None, "{:.0f} s") for summary in summaries]),
        ("accuracy", [_accuracy(summary) for summary in summaries]),
    ]
    if any(prices):
        rows += [
            ("$/hour", [usd(each.usd_per_hour if each else None) for each in prices]),
            ("$/epoch", [usd(each.usd_per_epoch if each else None) for each in prices]),
            ("$/million samples", _cheaper([each.usd_per_million if each else None for each in prices], alike)),
        ]
    elif not any(summary.get("simulated") for summary in summaries):
        # From a run's start to the end of its training.
        hours = [len(run["hosts"]) * (run["time_to_first_step_s"] + run["train_s"]) / 3600 for run in summaries]
        rows.append(("host-hours", [f"{each:.2g}" for each in hours]))
    for host in dict.fromkeys(host for summary in summaries for host in summary["hosts"]):
        rows.append((f"CPU {host}", [_cpu(summary["hosts"].get(host)) for summary in summaries]))
    return rows


def _median(summary: Summary) -> str:
    median_ms = summary["step_time_ms"]["median"]
    return f"{rounded(median_ms)} ms" if median_ms else "-"


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _data(summary: Summary) -> str:
    hosts = sum(record["group"] == "data_group" for record in summary["hosts"].values())
    return f"{getattr(summary, 'as_read', summary).get('tf_data_mode', '-')}, {hosts or 'no'} data hosts"


def _ranks(summary: Summary) -> str:
    ranks, batch = summary["world_size"], summary["global_batch_size"]
    return f"{ranks} × {batch // ranks or '-'}" if ranks else "-"


def _ideal(summary: Summary) -> str:
    if not summary["ideal_step_time_ms"]:
        return "-"
    error = summary.get("ideal_step_time_error_ms")
    about = f" ± {error:.0f}" if error and error >= 1 else f" ± {error:.1g}" if error else ""
    return f"{rounded(summary['ideal_step_time_ms'])}{about} ms"


def _with_ratio(values: Sequence[float], alike: Sequence[bool]) -> list[str]:
    first = values[0]
    ratios = [""]
    for value, is_alike in zip(values[1:], alike[1:], strict=True):
        ratios.append(f" ({value / first:.2f}×)" if first and is_alike else "")
    return [f"{rounded(value)}{ratio}" if value else "-" for value, ratio in zip(values, ratios, strict=True)]


def _cheaper(values: Sequence[float | None], alike: Sequence[bool]) -> list[str]:
    first = values[0]
    changes = [
        f" ({abs(value / first - 1):.0%} {'less' if value < first else 'more'})" if value and first and is_alike else ""
        for value, is_alike in zip(values, alike, strict=True)
    ]
    return [usd(value) + change for value, change in zip(values, ["", *changes[1:]], strict=True)]


def usd(value: float | None) -> str:
    """Return dollars as text for a table cell; `-` for None."""
    return "-" if value is None else f"{value:,.2f}" if value >= 0.1 else f"{value:.2g}"


def _accuracy(summary: Summary) -> str:
    value = accuracy(summary)
    return "-" if value is None else short(value)


def _cpu(record: Mapping[str, Any] | None) -> str:
    if record is None:
        return "-"
    role = "data" if record["group"] == "data_group" else "dnn"
    spent = "+".join(f"{name} {seconds:.0f} s" for name, seconds in record.get("cpu_s", {}).items() if seconds >= 0.5)
    return f"{role} {record['cpu_utilization']:.0%}" + (f" ({spent})" if spent else "")


def verdict(summaries: Sequence[Mapping[str, Any]], prices: Sequence[Price | None]) -> list[str]:
    """Return a line on each run, then lines that compare later runs with the first or say why they are not compared."""
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
        return f"{name} is limited by {limit}: an ideal step is {share:.0%} shorter than a mean step. {REMEDIES[limit]}"
    if share > INPUT_BOUND_FROM:
        return f"{name} is input-bound: it waited for data {share:.0%} of its time."
    has_data_hosts = any(host["group"] == DATA_GROUP for host in summary["hosts"].values())
    little = share > HARDLY_WAITS
    folder = shlex.quote(str(getattr(summary, "folder", name)))
    without = f"`headrace plan {folder}` says whether to rent data hosts." if little else "Data hosts save little time."
    lost = [host for host, record in summary["hosts"].items() if record.get("lost")]
    keep_up = f"{' and '.join(lost)} {'was' if len(lost) == 1 else 'were'} lost." if lost else "The data hosts suffice."
    more = keep_up if has_data_hosts else without
    if limit in REMEDIES:
        busy = f" (busy for {gpu_busy_share(summary) or 0:.0%} of a step)" if limit == PROCESS else ""
        more += f" Steps are limited by {limit}, not by the GPU{busy}. " if busy else f" Steps are limited by {limit}. "
        more += REMEDIES[limit]
    return f"{name} is not input-bound: it waited for data {share:.0%} of its time. {more}"


def _times(times: float) -> str:
    return f"{times:.2f} times as fast as" if abs(times - 1) >= 0.005 else "as fast as"


def main(argv: Sequence[str]) -> int:
    parser = OneLineParser(prog="headrace compare", description="Compares finished runs side by side.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder, such as runs/JOB_NAME")
    print(compare([read_summary(folder) for folder in parser.parse_args(argv).runs]))
    return 0
