"""Places where a job can run: SageMaker, Slurm, and simulated hosts of this machine. Each takes the same JobSpec."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Ended(NamedTuple):
    """A job that ran elsewhere and has ended."""

    succeeded: bool
    folder: Path | None
    """The folder here with its results; None: there are no results."""
