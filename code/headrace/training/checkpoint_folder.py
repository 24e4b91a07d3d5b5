"""A folder of checkpoints: each whole or not there, the newest few kept.

A checkpoint is a folder `epoch-NNNN`, or `epoch-NNNN-step-NNNNNN` within an epoch. It appears under its name only when
all of it is on disk.
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
"""Between two checkpoints, at most, where epochs take longer."""


NAME = re.compile(r"epoch-(\d{4,})(?:-step-(\d{6,}))?")
OF_ITS_OWN = "Give each training a folder of its own: Checkpoint(folder)"
_WRITTEN: dict[Path, CheckpointFolder] = {}
"""By this process."""


class CheckpointFolder:
    """The checkpoints of one job.

    Args:
        weights_file: what every whole checkpoint has.
        kept: how many are kept.
    """

    def __init__(self, folder: Path, weights_file: str, kept: int = KEPT_CHECKPOINTS) -> None:
        self._folder, self._weights_file, self._kept = folder, weights_file, kept
        self._saved_at = time.monotonic()

    def save(
        self, epoch: int, step: int, write_weights: Callable[[Path], None], records: Mapping[str, Mapping[str, Any]]
    ) -> Path:
        """Keep a checkpoint, and delete those that are too old; its folder.

        Args:
            epoch: the next one, or the one that `step` is of.
            step: steps of it that were made; 0: none.
            write_weights: writes them to the path that it is given.
            records: what else to keep, as JSON, by file name.
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
                    f"checkpoint {final.name} is not kept, because {self._folder} has those of later epochs: a second "
                    f"training in one script begins at epoch 0 again. {OF_ITS_OWN}", flush=True,
                )  # fmt: skip
            shutil.rmtree(old, ignore_errors=True)
        return final

    def tell_of_own(self) -> None:
        """Say so where the newest checkpoint is that of another training of this very process."""
        path = self.newest()
        if path and _WRITTEN.get(path.resolve(), self) is not self:
            print(
                f"checkpoint {path.name} is of what this script has trained before, so that this training does not "
                f"begin anew: of several folds, the later ones are not trained. {OF_ITS_OWN}", flush=True,
            )  # fmt: skip

    def is_due(self, every_s: float) -> bool:
        """Whether the newest of this process is so old; never with 0."""
        return 0 < every_s <= time.monotonic() - self._saved_at

    def newest(self) -> Path | None:
        """The folder of the newest checkpoint."""
        return next(reversed(self._checkpoints()), None)

    def newest_weights(self) -> Path | None:
        """The file with the newest checkpoint's weights."""
        path = self.newest()
        return path and path / self._weights_file

    def place(self) -> tuple[int, int]:
        """Epoch and step of the newest checkpoint; `(0, 0)` without one."""
        path = self.newest()
        return _place(path) if path else (0, 0)

    def record(self, name: str) -> Any:
        """What the newest checkpoint keeps under this name; None where it has nothing."""
        path = self.newest()
        if path is None or not (path / name).is_file():
            return None
        return json.loads((path / name).read_text(encoding="utf-8"))

    def _checkpoints(self) -> list[Path]:
        named = [path for path in self._folder.glob("epoch-*") if NAME.fullmatch(path.name)]  # not a user's copies
        return sorted((path for path in named if (path / self._weights_file).is_file()), key=_place)


def _place(path: Path) -> tuple[int, int]:
    """Epoch and step that a checkpoint's name tells."""
    epoch, step = NAME.fullmatch(path.name).groups(default="0")  # type: ignore[union-attr]
    return int(epoch), int(step)


def _sync(path: Path) -> None:
    """Have the file or folder on disk before going on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
