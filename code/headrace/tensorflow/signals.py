"""How a rank and the launcher of its host tell each other things: files in a folder, and lines in the log."""

from __future__ import annotations

import os
import time

import horovod.tensorflow as hvd

from headrace.context import STOP_REQUEST, TrainerContext
from headrace.events import format_event

PROGRESS_INTERVAL_S = 0.5


class Signals:
    """Tells this host's launcher that the rank makes progress; does nothing without a launcher."""

    def __init__(self) -> None:
        folder = TrainerContext.from_environ(os.environ).signal_dir
        self._file = folder / f"rank{hvd.rank()}" if folder.name else None
        self._stop = folder / STOP_REQUEST if folder.name else None
        self._next = 0.0

    def progress(self) -> None:
        """A step was made, or began; cheap enough to be called on each."""
        now = time.monotonic()
        if self._file and now >= self._next:
            self._next = now + PROGRESS_INTERVAL_S
            self._file.touch()

    def ended(self) -> None:
        """No more steps will come; what follows is judged by its output again."""
        if self._file:
            self._file.unlink(missing_ok=True)

    def stop_requested(self) -> bool:
        """Whether the job is to end after one more checkpoint."""
        return self._stop is not None and self._stop.exists()


def say(event_name: str, /, **fields: object) -> None:
    """Print a log event (see `headrace.events`)."""
    print(format_event(event_name, **fields), flush=True)
