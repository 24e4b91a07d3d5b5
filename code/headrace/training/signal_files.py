"""How a rank and the launcher of its host tell each other things by files: steps are made; the job is to end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from headrace.cluster.paths import STOP_REQUEST

PROGRESS_INTERVAL_S = 0.5
PAUSED = "paused"
"""Begins the name of the file that is there while a rank makes no steps."""


class SignalFiles:
    """This rank's files; does nothing without a launcher.

    Args:
        folder: `TrainerContext.signal_dir`, which has no name without a launcher.
        rank: says which rank this is; asked with a launcher only.
    """

    def __init__(self, folder: Path, rank: Callable[[], int]) -> None:
        self._file = folder / f"rank{rank()}" if folder.name else None
        self._stop = folder / STOP_REQUEST if folder.name else None
        self._paused = folder / f"{PAUSED}{rank()}" if folder.name else None
        self._next = 0.0
        self._steps = True

    def step(self) -> None:
        """A step was made."""
        self.progress()
        if self._paused and not self._steps:
            self._steps = True
            with contextlib.suppress(OSError):
                self._paused.unlink()

    def steps_over(self) -> None:
        """What comes until the next step is none of it; the launcher counts no GPU's utilization meanwhile."""
        if self._paused and self._steps:
            self._steps = False
            with contextlib.suppress(OSError):
                self._paused.touch()

    def progress(self) -> None:
        """A step was made, or began; cheap enough to be called on each."""
        now = time.monotonic()
        if self._file and now >= self._next:
            self._next = now + PROGRESS_INTERVAL_S
            with contextlib.suppress(OSError):  # a full disk, no free descriptor: the next step tries again
                self._file.touch()

    def ended(self) -> None:
        """No more steps will come; what follows is judged by its output again."""
        self.steps_over()
        if self._file:
            with contextlib.suppress(OSError):
                self._file.unlink()

    def stop_requested(self) -> bool:
        """Whether the job is to end after one more checkpoint."""
        return self._stop is not None and self._stop.exists()
