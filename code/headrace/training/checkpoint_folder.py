"""A folder of checkpoints, each of which is either complete or absent. Only the newest few are kept.

A checkpoint is a folder `epoch-NNNN`, or `epoch-NNNN-step-NNNNNN` within an epoch. It gets its name only when all its
files are on disk.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

KEPT_CHECKPOINTS = 3
EVERY_S = 600.0
"""Seconds between two checkpoints within an epoch."""
NAME = re.compile(r"epoch-(\d{4,})(?:-step-(\d{6,}))?")
OF_ITS_OWN = "Give each training a folder of its own: Checkpoint(folder)"
_WRITTEN: dict[Path, CheckpointFolder] = {}
"""The checkpoints that this process has saved, and the object that saved each."""


class CheckpointFolder:
    """The checkpoints of one job.

    Args:
        folder: the folder of all checkpoints.
        weights_file: name of the file with the weights, which every complete checkpoint has.
        kept: number of checkpoints to keep.
    """

    def __init__(self, folder: Path, weights_file: str, kept: int = KEPT_CHECKPOINTS) -> None:
        self._folder, self._weights_file, self._kept = folder, weights_file, kept
        self._saved_at = time.monotonic()

    def save(
        self, epoch: int, step: int, write_weights: Callable[[Path], None], records: Mapping[str, Mapping[str, Any]]
    ) -> Path:
        """Save a checkpoint, delete the oldest ones, and return the new one's folder.

        Args:
            epoch: the epoch to continue with.
            step: number of steps of that epoch that are already made.
            write_weights: writes the weights to a path.
            records: further files to save as JSON, by name.
        """
        final = self._folder / (f"epoch-{epoch:04d}" + (f"-step-{step:06d}" if step else ""))
        partial = self._folder / f".partial-{final.name}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        write_weights(partial / self._weights_file)
        _sync(partial / self._weights_file)
        for name, record in records.items():
            (partial / name).write_text(json.dumps(record), encoding="utf-8")
            _sync(partial / name)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(partial, final)
        _sync(self._folder)
        self._saved_at = time.monotonic()
        _WRITTEN[final.resolve()] = self
        for old in self._checkpoints()[: -self._kept]:
            if old == final:
                print(
                    f"checkpoint {final.name} is not kept, because {self._folder} has checkpoints of later epochs, "
                    f"from an earlier training of this script. {OF_ITS_OWN}",
                    flush=True,
                )
            shutil.rmtree(old, ignore_errors=True)
        return final

    def tell_of_own(self) -> None:
        """Print a warning if an earlier training in this process saved the newest checkpoint."""
        path = self.newest()
        if path and _WRITTEN.get(path.resolve(), self) is not self:
            print(
                f"checkpoint {path.name} was saved by an earlier training of this script, so this training continues "
                f"from it. In a cross-validation, only the first fold would be trained. {OF_ITS_OWN}",
                flush=True,
            )

    def is_due(self, every_s: float) -> bool:
        """Return whether `every_s` seconds have passed since the last `save`; before one, since creation. 0: False."""
        return 0 < every_s <= time.monotonic() - self._saved_at

    def newest(self) -> Path | None:
        """Return the folder of the newest checkpoint; None if there is none."""
        return next(reversed(self._checkpoints()), None)

    def newest_weights(self) -> Path | None:
        """Return the file with the newest checkpoint's weights; None if there is none."""
        path = self.newest()
        return path and path / self._weights_file

    def place(self) -> tuple[int, int]:
        """Return the epoch and step of the newest checkpoint; `(0, 0)` if there is none."""
        path = self.newest()
        return _place(path) if path else (0, 0)

    def record(self, name: str) -> Any:
        """Return the content of the newest checkpoint's JSON file `name`; None if there is none."""
        path = self.newest()
        if path is None or not (path / name).is_file():
            return None
        return json.loads((path / name).read_text(encoding="utf-8"))

    def _checkpoints(self) -> list[Path]:
        named = [path for path in self._folder.glob("epoch-*") if NAME.fullmatch(path.name)]  # skips a user's copies
        return sorted((path for path in named if (path / self._weights_file).is_file()), key=_place)


def _place(path: Path) -> tuple[int, int]:
    """Return the epoch and step in a checkpoint's name."""
    epoch, step = NAME.fullmatch(path.name).groups(default="0")  # type: ignore[union-attr]
    return int(epoch), int(step)


def _sync(path: Path) -> None:
    """Wait until a file or folder is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
