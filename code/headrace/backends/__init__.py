"""Places where a job can run: SageMaker, Slurm, and simulated hosts of this machine. Each takes the same JobSpec."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Ended(NamedTuple):
    """A job on SageMaker or Slurm that has ended."""

    succeeded: bool
    folder: Path | None
    """Local folder with the job's results; None if it left none."""
