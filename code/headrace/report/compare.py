"""Runs side by side: what the data group buys.

python -m headrace.report.compare RUN [RUN ...]
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError
from headrace.report.runs import accuracy, read_summary


def compare(summaries: Sequence[Mapping[str, Any]]) -> str:
    """A table with a column for each run; ratios are to the first one."""
    rows = [
        ("", [summary["job_name"] for summary in summaries]),
        ("outcome", [summary["outcome"] for summary in summaries]),
        ("data", [_data(summary) for summary in summaries]),
        ("ranks × batch", [_ranks(summary) for summary in summaries]),
        ("step time, median", [f"{summary['step_time_ms']['median']:.0f} ms" for summary in summaries]),
        ("ideal step time", [f"{summary['ideal_step_time_ms']:.0f} ms" for summary in summaries]),
        ("waiting for data", [f"{summary['input_bound_share']:.0%}" for summary in summaries]),
        ("images/s", _with_ratio([summary["samples_per_s"] for summary in summaries])),
        ("training time", [f"{summary['train_s']:.0f} s" for summary in summaries]),
        ("first step after", [f"{summary['time_to_first_step_s']:.0f} s" for summary in summaries]),
        ("accuracy", [_accuracy(summary) for summary in summaries]),
    ]
    for host in dict.fromkeys(host for summary in summaries for host in summary["hosts"]):
        rows.append((f"CPU {host}", [_cpu(summary["hosts"].get(host)) for summary in summaries]))
    return _table(rows)


def _data(summary: Mapping[str, Any]) -> str:
    hosts = sum(record["group"] == "data_group" for record in summary["hosts"].values())
    return f"{summary['tf_data_mode']}, {hosts} data hosts" if hosts else f"{summary['tf_data_mode']}, no data hosts"


def _ranks(summary: Mapping[str, Any]) -> str:
    ranks = summary["world_size"]
    return f"{ranks} × {summary['global_batch_size'] // ranks}" if ranks else "-"


def _with_ratio(values: Sequence[float]) -> list[str]:
    first = values[0]
    ratios = [""] + [f" ({value / first:.2f}×)" if first else "" for value in values[1:]]
    return [f"{value:.0f}{ratio}" for value, ratio in zip(values, ratios, strict=True)]


def _accuracy(summary: Mapping[str, Any]) -> str:
    value = accuracy(summary)
    return "-" if value is None else f"{value:.3f}"


def _cpu(record: Mapping[str, Any] | None) -> str:
    if record is None:
        return "-"
    role = "data" if record["group"] == "data_group" else "dnn"
    spent = "+".join(f"{name} {seconds:.0f} s" for name, seconds in record.get("cpu_s", {}).items() if seconds >= 0.5)
    return f"{role} {record['cpu_utilization']:.0%}" + (f" ({spent})" if spent else "")


def _table(rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    cells = [[name, *values] for name, values in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def main(argv: Sequence[str]) -> int:
    if not argv or argv[0].startswith("-"):
        print("usage: python -m headrace.report.compare RUN [RUN ...]", file=sys.stderr)
        return 2
    try:
        print(compare([read_summary(Path(folder)) for folder in argv]))
    except HeadraceError as error:
        print(f"compare: error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
