"""Checkpoints to resume from: whole or not there, at each epoch's end and when the job is asked to stop."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from headrace.context import CHECKPOINTS_ON_REQUEST, TrainerContext
from headrace.tensorflow.signals import Signals, say

Logs = dict[str, Any] | None
KEPT_CHECKPOINTS = 3
STOPPING_S = 30.0
"""After a checkpoint on request, rank 0 waits here to be ended."""
WEIGHTS_FILE = "model.weights.h5"


class Checkpoint(keras.callbacks.Callback):
    """Keeps a checkpoint of each epoch on rank 0 and resumes from the newest whole one.

    A checkpoint is a folder `epoch-NNNN` that appears under its name only when all of it is on disk.

    Args:
        folder: where; by default the job's checkpoint folder.
        kept: how many to keep.
    """

    def __init__(self, folder: str | Path | None = None, kept: int = KEPT_CHECKPOINTS) -> None:
        super().__init__()
        self._folder = Path(folder) if folder else TrainerContext.from_environ(os.environ).checkpoint_dir
        self._kept = kept
        self._signals = Signals()
        self._epoch = 0

    def on_train_begin(self, logs: Logs = None) -> None:
        if hvd.rank() == 0:
            say(CHECKPOINTS_ON_REQUEST)

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        if hvd.rank() == 0 and self._signals.stop_requested():
            # All ranks hold the same weights, so rank 0 needs nobody's help; the launcher ends the job after it.
            self._save(f"epoch-{self._epoch:04d}-step-{batch + 1:06d}", self._epoch)
            time.sleep(STOPPING_S)

    def restore(self, model: keras.Model) -> int:
        """Load the newest checkpoint, if there is one, and say which epoch comes next (0 without).

        Call it on every rank: rank 0 reads, all learn the epoch; the broadcast at the start of training
        spreads the state.
        """
        epoch = 0
        if hvd.rank() == 0:
            for path in reversed(self._checkpoints()):
                if not model.optimizer.built:
                    model.optimizer.build(model.trainable_variables)
                model.load_weights(path / WEIGHTS_FILE)
                epoch = int(path.name.split("-")[1])
                print(f"resuming after epoch {epoch} from {path}", flush=True)
                break
        if hvd.size() > 1:
            epoch = int(hvd.broadcast(tf.constant(epoch, tf.int32), root_rank=0))
        return epoch

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        if hvd.rank() != 0:
            return
        self._save(f"epoch-{epoch + 1:04d}", epoch + 1)

    def _save(self, name: str, epoch: int) -> None:
        final = self._folder / name
        partial = self._folder / f".partial-{final.name}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        self.model.save_weights(partial / WEIGHTS_FILE)
        _sync(partial / WEIGHTS_FILE)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(partial, final)
        _sync(self._folder)
        for old in self._checkpoints()[: -self._kept]:
            shutil.rmtree(old, ignore_errors=True)
        say("checkpoint", epoch=epoch, path=final)

    def _checkpoints(self) -> list[Path]:
        return sorted(path for path in self._folder.glob("epoch-*") if (path / WEIGHTS_FILE).is_file())


def _sync(path: Path) -> None:
    """Have the file or folder on disk before going on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
