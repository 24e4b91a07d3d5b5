"""Checkpoints to resume from: whole or not there, at each epoch's end and when the job is asked to stop."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from headrace.context import CHECKPOINTS_ON_REQUEST, TrainerContext
from headrace.tensorflow.signals import Signals, say

if TYPE_CHECKING:
    from headrace.tensorflow.shards import Shards

Logs = dict[str, Any] | None
KEPT_CHECKPOINTS = 3
STOPPING_S = 30.0
"""After a checkpoint on request, rank 0 waits here to be ended."""
WEIGHTS_FILE = "model.weights.h5"
LEDGER_FILE = "ledger.json"
PROGRESS_FILE = "progress.json"
EPOCH_OVER = "the resumed epoch is over"
"""Set as the model's `stop_training` to end the loop over a resumed epoch's steps; another callback's True stays."""


class Checkpoint(keras.callbacks.Callback):
    """Keeps a checkpoint of each epoch on rank 0 and resumes from the newest whole one.

    A checkpoint is a folder `epoch-NNNN` (or `epoch-NNNN-step-NNNNNN`, made when the job was asked to stop)
    that appears under its name only when all of it is on disk. It has the ledger of the data too, where
    `data.Shards` makes them.

    Args:
        folder: where; by default the job's checkpoint folder.
        kept: how many to keep.
    """

    def __init__(self, folder: str | Path | None = None, kept: int = KEPT_CHECKPOINTS) -> None:
        super().__init__()
        self._folder = Path(folder) if folder else TrainerContext.from_environ(os.environ).checkpoint_dir
        self._kept = kept
        self._signals = Signals()
        self._epoch = self._batch = 0
        self._first_epoch = True
        self._resumed = (0, 0)  # steps of the first epoch made before this run, and how many it had then
        self._skipped_steps = 0
        self.shards: Shards | None = None

    def on_train_begin(self, logs: Logs = None) -> None:
        if hvd.rank() == 0:
            say(CHECKPOINTS_ON_REQUEST)
        self._first_epoch = True

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        if self._first_epoch and self.shards:
            self.shards.start()  # `fit` asks for the first batch after this
        steps, (made, of) = self._steps(), self._resumed
        # Another number of ranks may have made other steps of the same epoch.
        self._skipped_steps = made * steps // of if steps and of else 0
        self._epoch, self._batch, self._first_epoch, self._resumed = epoch, 0, False, (0, 0)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        made = batch + 1 - self._batch  # more than one with `steps_per_execution`
        self._batch = batch + 1
        if self.shards:
            self.shards.consumed(made)
        step, steps = self._batch + self._skipped_steps, self._steps()
        if self._skipped_steps and step >= steps:
            self.model.stop_training = EPOCH_OVER
        if hvd.rank() == 0 and self._signals.stop_requested():
            # All ranks hold the same weights, so rank 0 needs nobody's help; the launcher ends the job after it.
            over = 0 < steps <= step
            epoch = self._epoch + over
            self._save(f"epoch-{epoch:04d}" + ("" if over else f"-step-{step:06d}"), epoch)
            time.sleep(STOPPING_S)

    @property
    def skipped_steps(self) -> int:
        """Steps of the present epoch that an earlier run has made."""
        return self._skipped_steps

    def _steps(self) -> int:
        """Steps of an epoch; 0 when Keras does not know."""
        return int((self.params or {}).get("steps") or 0)

    def restore(self, model: keras.Model) -> int:
        """Load the newest checkpoint, if there is one, and say which epoch comes next (0 without).

        Of an epoch that was begun, only the remaining steps are made. Call it on every rank: rank 0 reads, all
        learn epoch and step; the broadcast at the start of training spreads the state.
        """
        epoch = step = steps = 0
        path = self._newest()
        if hvd.rank() == 0 and path:
            if not model.optimizer.built:
                model.optimizer.build(model.trainable_variables)
            model.load_weights(path / WEIGHTS_FILE)
            _, number, *rest = path.name.split("-")
            epoch, step = int(number), int(rest[-1]) if rest else 0
            steps = int((self.saved(PROGRESS_FILE) or {}).get("steps_per_epoch", 0))
            say("resumed", epoch=epoch, step=step, path=path)
            if self.shards:
                self.shards.report()
        if hvd.size() > 1:
            known = hvd.broadcast(tf.constant([epoch, step, steps], tf.int32), root_rank=0)
            epoch, step, steps = (int(each) for each in known)
        self._resumed = (step, steps)
        return epoch

    def saved(self, name: str) -> Any:
        """What the newest checkpoint has in a JSON file of this name; None where there is no such file."""
        path = self._newest()
        if path is None or not (path / name).is_file():
            return None
        return json.loads((path / name).read_text(encoding="utf-8"))

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self._skipped_steps = 0
        if getattr(self.model, "stop_training", False) is EPOCH_OVER:
            self.model.stop_training = False
        if self.shards:
            self.shards.gather()
        if hvd.rank() == 0:
            self._save(f"epoch-{epoch + 1:04d}", epoch + 1)

    def _save(self, name: str, epoch: int) -> None:
        final = self._folder / name
        partial = self._folder / f".partial-{final.name}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        self.model.save_weights(partial / WEIGHTS_FILE)
        _sync(partial / WEIGHTS_FILE)
        _write(partial / PROGRESS_FILE, {"steps_per_epoch": self._steps()})
        if self.shards:
            _write(partial / LEDGER_FILE, self.shards.state())
        shutil.rmtree(final, ignore_errors=True)
        os.replace(partial, final)
        _sync(self._folder)
        for old in self._checkpoints()[: -self._kept]:
            shutil.rmtree(old, ignore_errors=True)
        say("checkpoint", epoch=epoch, path=final)

    def _newest(self) -> Path | None:
        return next(reversed(self._checkpoints()), None)

    def _checkpoints(self) -> list[Path]:
        return sorted(path for path in self._folder.glob("epoch-*") if (path / WEIGHTS_FILE).is_file())


def _write(path: Path, record: dict[str, Any]) -> None:
    path.write_text(json.dumps(record), encoding="utf-8")
    _sync(path)


def _sync(path: Path) -> None:
    """Have the file or folder on disk before going on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
