"""Run whole jobs for the benchmarks. The jobs' source dir holds copies of code/ and of bench/scripts/."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.support import ROOT, Run, run_job

SCRIPTS = Path(__file__).parent / "scripts"


@contextlib.contextmanager
def source_dir() -> Iterator[Path]:
    """Copy the source dir into a temporary folder, and yield the copy's path. Runs may be stored beside the copy."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        source = Path(name) / "source"
        shutil.copytree(ROOT / "code", source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        for script in SCRIPTS.glob("*.py"):
            shutil.copy(script, source)
        yield source


def run(
    source: Path, script: str, *flags: str, job_name: str = "", timeout_s: float = 240.0, **hyperparameters: object
) -> Run:
    """Run one job; if it fails, end the benchmark and print the job's output."""
    given = [f"--hyperparameter={name}={value}" for name, value in hyperparameters.items()]
    flags = (f"--source_dir={source}", f"--training_script={script}", "--isolation=namespaces", *flags, *given)
    done = run_job(source.parent, *flags, job_name=job_name, timeout_s=timeout_s)
    if done.code:
        raise SystemExit(f"bench: error: a job failed:\n{done.output[-3000:]}")
    return done


def measured(run: Run) -> dict[str, float]:
    """Return the figures that bench/scripts/fixed_step.py measured."""
    (event,) = run.events("measured")
    return {name: float(value) for name, value in event.fields.items()}
