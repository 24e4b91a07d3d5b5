"""Files by which a rank shows progress to its host's launcher, and by which the launcher asks the rank to stop."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from headrace.cluster.run_files import STOP_REQUEST

PROGRESS_INTERVAL_S = 0.5
PAUSED = "paused"
"""Prefix of a file's name. The file `paused0`, for example, tells the launcher that rank 0 makes no steps now."""


class SignalFiles:
    """This rank's signal files. Without a launcher the methods do nothing.

    Args:
        folder: `TrainerContext.signal_dir`; an empty path if there is no launcher.
        rank: returns this process's rank; called only if there is a launcher.
    """

    def __init__(self, folder: Path, rank: Callable[[], int]) -> None:
        self._folder = folder if folder.name else None
        if self._folder:
            self._file, self._paused = folder / f"rank{rank()}", folder / f"{PAUSED}{rank()}"
        self._next = 0.0
        self._steps = True

    def step(self) -> None:
        """Show that a step was made."""
        self.progress()
        if self._folder and not self._steps:
            self._steps = True
            with contextlib.suppress(OSError):
                self._paused.unlink()

    def steps_over(self) -> None:
        """Tell the launcher to ignore the GPU's utilization until the next call of `step`: no step runs until then."""
        if self._folder and self._steps:
            self._steps = False
            with contextlib.suppress(OSError):
                self._paused.touch()

    def progress(self) -> None:
        """Show that this rank makes progress. This is cheap enough to call for each step."""
        now = time.monotonic()
        if self._folder and now >= self._next:
            self._next = now + PROGRESS_INTERVAL_S
            with contextlib.suppress(OSError):  # a full disk, no free descriptor: the next step tries again
                self._file.touch()

    def ended(self) -> None:
        """Show that training is over. The stall watchdog then takes printed lines as a sign of progress again."""
        self.steps_over()
        if self._folder:
            with contextlib.suppress(OSError):
                self._file.unlink()

    def stop_requested(self) -> bool:
        """Return whether the job must end after one more checkpoint."""
        return self._folder is not None and (self._folder / STOP_REQUEST).exists()
