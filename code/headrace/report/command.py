"""`headrace report RUN [RUN ...]`: compare runs in a printed table, plots and one HTML page."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cluster.run_files import PLOTS, REPORT
from headrace.errors import SetupError
from headrace.job.instances import read_instances
from headrace.report.compare import compare, compare_rows, verdict
from headrace.report.run_cost import Price, host_type, parse_stands_for, price
from headrace.report.runs import Find, Summary, read_summary
from headrace.report.timeline import Timeline, read_timeline
from headrace.terminal.parser import OneLineParser

if TYPE_CHECKING:
    from headrace.report.plots import Runs


def main(argv: Sequence[str], find: Find = lambda run, _: run) -> int:
    """Make the report and return 0, or raise an error: exit code 1 if writing fails, 2 if a folder holds no run."""
    given = _parser().parse_args(argv)
    table = read_instances(given.prices).with_prices(given.price or ())
    stands_for = parse_stands_for(given.stands_for or (), table)
    folders = [find(run, given.region) for run in given.runs]
    runs = _read(folders)
    summaries = [summary for summary, _ in runs]
    prices = [price(summary, table, stands_for) for summary in summaries]
    # Write the page before printing: a reader of the text, such as `head`, may close the pipe.
    path = write_page(runs, given.output or folders[-1], prices, _notes(runs, prices, table.dated))
    print(compare(summaries, prices))
    print()
    for line in verdict(summaries, prices):
        print(line)
    for note in _unread(runs):
        print(note)
    for summary, cost in zip(summaries, prices, strict=True):
        kinds = [
            host_type(host, bool(summary.get("simulated")), table, stands_for) for host in summary["hosts"].values()
        ]
        if free := next((kind.name for kind in kinds if kind and kind.usd_per_hour is None), None):
            print(f"{summary['job_name']} has no price: the table has none for {free}; give --price {free}=USD")
        elif stands_for and not cost:
            remedy = "--as for each group" if summary.get("simulated") else "a --prices table that has the host's type"
            print(f"{summary['job_name']} has no price: a host's type is unknown; give {remedy}")
    print(f"report: {path}")
    return 0


def write_page(runs: Runs, folder: Path, prices: Sequence[Price | None], notes: Sequence[str]) -> Path:
    """Write the page and the plots to `folder`; return the page's path. Raise `SetupError` if that fails."""
    from headrace.report import page, plots

    drawings = [
        ("step_time", "step time", plots.step_times(runs),
         "Dashed: the ideal step time. Ticks below: checkpoints. Dotted: restarts and lost hosts."),
        ("waiting", "waiting for data", plots.waiting(runs), "The share of each step spent waiting for data."),
    ]  # fmt: skip
    for summary, timeline in runs:
        name = summary["job_name"]
        drawings += [
            (f"utilization-{name}", f"utilization by group, {name}", plots.utilization(timeline),
             "Mean over all processors of the group's hosts. Each point covers the five seconds before it."),
            (f"cpu-{name}", f"CPU seconds by host, {name}", plots.cpu_by_host(summary),
             "CPU time of each host's processes, from the first step to the end of training."),
        ]  # fmt: skip
        if timeline.delivered:
            drawn = plots.delivered(timeline)
            note = "Batches from each worker to all ranks together. Each point covers the five seconds before it."
            drawings.append((f"workers-{name}", f"batches by worker, {name}", drawn, note))
    summaries = [summary for summary, _ in runs]
    try:
        pictures = []
        for file, title, draw, caption in drawings:
            made = plots.figure(draw, title)
            plots.as_png(made, folder / PLOTS / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', file)}.png")
            pictures.append((plots.as_svg(made), caption))
        text = page.render(summaries, compare_rows(summaries, prices), verdict(summaries, prices), notes, pictures)
        path = folder / REPORT
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SetupError(f"cannot write the report to {folder}: {error}") from error
    return path


def _read(folders: Sequence[Path]) -> list[tuple[Summary, Timeline]]:
    """Read the runs. Append a number to a job name that occurred before."""
    runs = [(read_summary(folder), read_timeline(folder)) for folder in folders]
    seen: dict[str, int] = {}
    for summary, _ in runs:
        name = summary["job_name"]
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            summary["job_name"] = f"{name} ({seen[name]})"
    return runs


def _notes(runs: Runs, prices: Sequence[Price | None], dated: str) -> list[str]:
    notes = [
        "Step times are rank 0's, without the first step; medians are of the latest 10,000 steps.",
        "The share waiting for data is 1 − ideal step time ÷ mean step time.",
        "CPU figures and bytes count from the first step to the end of training.",
    ]
    if any(prices):
        notes.append(f"Costs are for all hosts during the steps of training, without storage. Prices: {dated}.")
        notes.append("Simulated hosts are priced as the types given with --as.")
    return notes + _unread(runs)


def _unread(runs: Runs) -> list[str]:
    notes = []
    for summary, timeline in runs:
        if timeline.unreadable:
            notes.append(f"{timeline.unreadable} lines of {summary['job_name']}'s metrics.jsonl could not be read.")
        if timeline.problem:
            notes.append(f"{summary['job_name']}'s metrics.jsonl could not be read: {timeline.problem}.")
    return notes


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="headrace report", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="a run's folder, or the name of a SageMaker job; other runs are compared with the first",
    )
    parser.add_argument("--region", metavar="NAME", help="region of the SageMaker jobs, if RUN is a job's name")
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="folder for page and plots (default: the last run's)"
    )
    parser.add_argument(
        "--as",
        dest="stands_for",
        action="append",
        metavar="[GROUP=]TYPE",
        help="the instance type whose price is used for simulated hosts; repeatable: "
        "--as dnn_group=ml.p4d.24xlarge --as data_group=ml.c5.18xlarge",
    )
    parser.add_argument("--price", action="append", metavar="TYPE=USD", help="your price per hour of TYPE; repeatable")
    parser.add_argument("--prices", type=Path, metavar="CSV", help="your own table, with the columns of instances.csv")
    return parser
