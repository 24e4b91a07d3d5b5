"""Run `headrace runs`, `headrace report` and `headrace plan`.

`report` and `plan` take a run's folder, or its name in `runs/`. Any other name is a SageMaker job, which they fetch.
"""

from __future__ import annotations

import datetime
import functools
import sys
from collections.abc import Sequence
from pathlib import Path

from headrace.cli.start import check_installation
from headrace.cluster.run_files import RunPaths
from headrace.errors import InputError
from headrace.report import command, plan
from headrace.report.runs import Summary, read_summary, rounded, waited_share
from headrace.terminal.parser import OneLineParser
from headrace.terminal.tables import as_table

OUTPUT_DIR = Path("runs")
"""Folder to which results of jobs are fetched: the default of start_job.py's --output_dir."""
HEAD = ("run", "ended", "outcome", "hosts", "script", "steps", "samples/s", "waiting for data")
NO_SUMMARY = "no summary: it still runs, or was killed"


def _folder_of(run: Path, region: str | None) -> Path:
    if run.exists():
        return run
    if RunPaths(OUTPUT_DIR / run).summary.is_file():
        return OUTPUT_DIR / run
    if any((OUTPUT_DIR / run).glob("algo-*")):
        raise InputError(
            f"{OUTPUT_DIR / run} has no summary: the job still runs, or was killed before it could leave one"
        )
    if len(run.parts) != 1:
        raise InputError(f"{run}: no such folder; give a run's folder, or the name of a job")
    check_installation(("boto3",))
    from headrace.backends.sagemaker.results import fetch_job

    return fetch_job(str(run), region, OUTPUT_DIR, lambda text: print(text, file=sys.stderr, flush=True))


report = functools.partial(command.main, find=_folder_of)
plan_from = functools.partial(plan.main, find=_folder_of)


def list_runs(argv: Sequence[str]) -> int:
    """Print a table of the runs that lie in a folder (`headrace runs`); return the exit code."""
    parser = OneLineParser(prog="headrace runs", description="List the runs that lie in a folder, the newest first.")
    parser.add_argument("folder", nargs="?", type=Path, default=OUTPUT_DIR, metavar="DIR", help="(%(default)s)")
    folder: Path = parser.parse_args(argv).folder
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; give your runs' --output_dir, or start a job with `headrace run`")
    folders = (each for each in folder.iterdir() if RunPaths(each).summary.is_file() or any(each.glob("algo-*")))
    found = sorted(folders, key=_ended_at, reverse=True)
    if not found:
        print(f"no runs in {folder}")
        return 0
    print(as_table([HEAD, *((run.name, *_cells(run)) for run in found)]))
    return 0


def _ended_at(run: Path) -> float:
    summary = RunPaths(run).summary
    return (summary if summary.exists() else run).stat().st_mtime


def _cells(run: Path) -> tuple[str, ...]:
    if not RunPaths(run).summary.exists():
        return ("", NO_SUMMARY)
    ended = f"{datetime.datetime.fromtimestamp(_ended_at(run)):%Y-%m-%d %H:%M}"
    try:
        summary = read_summary(run)
    except InputError as error:
        return (ended, str(error))
    share = waited_share(summary)
    return (
        ended,
        summary["outcome"],
        _hosts(summary),
        summary["training_script"],
        str(summary["steps"]),
        rounded(summary["samples_per_s"]),
        "" if share is None else f"{share:.0%}",
    )


def _hosts(summary: Summary) -> str:
    """Return how many hosts each group has, such as `1 data + 1 dnn`."""
    groups = [host["group"] for host in summary["hosts"].values()]
    data = groups.count("data_group")
    return " + ".join(filter(None, [f"{data} data" if data else "", f"{len(groups) - data} dnn"]))
