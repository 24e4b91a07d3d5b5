"""`headrace report` and `headrace plan` for runs here and jobs on SageMaker. A name that is no folder names a job."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from headrace.cli.start import check_installation
from headrace.cluster.run_files import RunPaths
from headrace.errors import InputError
from headrace.report import command, plan

OUTPUT_DIR = Path("runs")
"""Folder to which results of jobs are fetched, the same as start_job.py's."""


def report(argv: Sequence[str]) -> int:
    """Run `headrace report`; see `headrace.report.command`."""
    return command.main(argv, _folder_of)


def plan_from(argv: Sequence[str]) -> int:
    """Run `headrace plan`; see `headrace.report.plan`."""
    return plan.main(argv, _folder_of)


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
        raise InputError(f"{run}: no such folder")
    check_installation(("boto3",))
    from headrace.backends.sagemaker.results import fetch_job

    return fetch_job(str(run), region, OUTPUT_DIR, lambda text: print(text, file=sys.stderr, flush=True))
