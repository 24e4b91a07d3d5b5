"""Atomic checkpoints to resume from: at each epoch's end, every ten minutes, and before a stop."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras

from headrace.errors import InputError
from headrace.events import CHECKPOINTS_ON_REQUEST, say
from headrace.rank.context import TrainerContext
from headrace.tensorflow.keras import rank_meter
from headrace.tensorflow.keras.broadcast import broadcast_state, build_optimizer, called_built
from headrace.tensorflow.keras.steps import Logs, StepCallback
from headrace.tensorflow.ranks import collectives
from headrace.training.checkpoint_folder import EVERY_S, KEPT_CHECKPOINTS, CheckpointFolder
from headrace.training.signal_files import SignalFiles

if TYPE_CHECKING:
    from headrace.tensorflow.resume import Shards

STOPPING_S = 30.0
"""Limit in seconds. On a stop request, rank 0 saves a checkpoint, and then waits until the launcher ends the job."""
WEIGHTS_FILE = "model.weights.h5"
LEDGER_FILE = "ledger.json"
PROGRESS_FILE = "progress.json"
EPOCH_OVER = "the resumed epoch is over"
"""Value of `model.stop_training` that ends only the resumed epoch. The value True ends all training."""


class Checkpoint(StepCallback):
    """Saves checkpoints on rank 0, after each epoch and within long epochs. Resumes from the newest complete one.

    Each epoch ends with a folder `epoch-NNNN`. Within an epoch a folder `epoch-NNNN-step-NNNNNN` is written every
    `every_s` seconds, and when the job is asked to stop. A folder gets its name only when all its files are on disk.
    With `data.Shards` a checkpoint also records which elements have been trained on.

    Args:
        folder: the folder of the checkpoints; by default the job's.
        kept: number of newest checkpoints to keep.
        every_s: seconds between checkpoints within an epoch; 0: there are none within an epoch.
    """

    def __init__(
        self, folder: str | Path | None = None, kept: int = KEPT_CHECKPOINTS, every_s: float = EVERY_S
    ) -> None:
        super().__init__()
        self._every_s = every_s
        context = TrainerContext.from_environ(os.environ)
        self._folder = CheckpointFolder(Path(folder) if folder else context.checkpoint_dir, WEIGHTS_FILE, kept)
        self._signals = SignalFiles(context.signal_dir, collectives.rank)
        self._epoch = self._batch = 0
        self._first_epoch = True
        self._resumed = (0, 0, 1)  # from the checkpoint: steps made in its epoch, steps per epoch, number of ranks
        self.skipped_steps = 0
        """Steps of the present epoch that an earlier run has made."""
        self._last_steps = 0
        self._stream: Shards | None = None

    def keep_stream(self, stream: Shards) -> Any:
        """Save the state of `stream` in later checkpoints. On rank 0, return its newest saved state; elsewhere None."""
        self._stream = stream
        return self._folder.record(LEDGER_FILE) if collectives.rank() == 0 else None

    def on_train_begin(self, logs: Logs = None) -> None:
        if collectives.rank() == 0:
            say(CHECKPOINTS_ON_REQUEST)
        self._first_epoch = True

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        super().on_epoch_begin(epoch)
        if self._first_epoch and self._stream:
            self._stream.start()  # `fit` requests its first batch only after `on_epoch_begin`
        made, of, ranks = self._resumed
        # With another number of ranks, the same epoch may have had another number of steps.
        steps = self.steps_of_epoch() or of * ranks // collectives.size()
        self.skipped_steps = made * steps // of if of else 0
        self._last_steps = steps if of else self._last_steps
        rank_meter.resumed_at = self.skipped_steps
        self._epoch, self._batch, self._first_epoch, self._resumed = epoch, 0, False, (0, 0, 1)

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        self._trained(batch)
        step, steps = batch + self.skipped_steps, self.steps_of_epoch()
        at_once = max(int(getattr(self.model, "steps_per_execution", 1)), 1)
        if self.skipped_steps and step + at_once >= (steps or self._last_steps):
            self.model.stop_training = EPOCH_OVER  # ends the epoch after the step that now begins
        if not batch or collectives.rank() != 0:
            return
        # All ranks hold the same weights, so rank 0 can save them alone.
        if self._signals.stop_requested():
            self._save(self._epoch, step)
            time.sleep(STOPPING_S)  # the launcher ends the job
        elif self._folder.is_due(self._every_s):
            self._save(self._epoch, step)

    def _trained(self, steps: int) -> None:
        """Record that this many steps of the epoch have been made."""
        made, self._batch = steps - self._batch, steps
        if self._stream and made:
            self._stream.consumed(made)

    def restore(self, model: keras.Model) -> int:
        """Load the newest checkpoint, if there is one. Return the epoch to continue with (0 without a checkpoint).

        Call this on every rank. Rank 0 reads the checkpoint, and all ranks get the weights and the optimizer's state.
        Only the rest of an incomplete epoch is made. If Keras does not know how many steps an epoch has, the count from
        the previous epoch is used. If there is no such count, as in the first epoch, the whole epoch is repeated.
        Raises `InputError` if the model has no weights yet, or if the checkpoint is of another model.
        """
        epoch = step = steps = 0
        ranks = collectives.size()
        weights = self._folder.newest_weights()
        if not model.weights:
            raise InputError(
                "the model has no weights yet, so no checkpoint can be loaded: before restore, begin the model with "
                "keras.Input(…), or call the model on a batch"
            )
        if collectives.rank() == 0 and weights:
            self._folder.tell_of_own()
            build_optimizer(model, model.optimizer)
            try:
                with called_built(model):
                    model.load_weights(weights)
            except (KeyError, ValueError) as error:
                raise InputError(
                    f"the newest checkpoint, {weights.parent}, is of another model "
                    f"({' '.join(str(error).split())[:300]}); delete it, or give another folder (--checkpoint_s3_uri)"
                ) from error
            epoch, step = self._folder.place()
            record = self._folder.record(PROGRESS_FILE) or {}
            steps, ranks = int(record.get("steps_per_epoch", 0)), int(record.get("ranks", ranks))
            say("resumed", epoch=epoch, step=step, path=weights.parent)
            if self._stream:
                self._stream.report()
        found = [epoch, step, steps, ranks, weights is not None]
        epoch, step, steps, ranks, loaded = collectives.same_on_all_ranks(found, "headrace.resumed")
        if loaded:
            broadcast_state(model)
        self._resumed = (step, steps, ranks)
        return epoch

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self._trained(max(self.ended()[0], self._batch))
        self._last_steps = self._batch + self.skipped_steps
        self.skipped_steps = 0
        if getattr(self.model, "stop_training", False) is EPOCH_OVER:
            self.model.stop_training = False
        if self._stream:
            self._stream.gather()
        if collectives.rank() == 0:
            self._save(epoch + 1, 0)
            if self._signals.stop_requested():
                time.sleep(STOPPING_S)

    def _save(self, epoch: int, step: int) -> None:
        # A dataset of unknown length is taken to be as long as in the epoch before.
        progress = {"steps_per_epoch": self.steps_of_epoch() or self._last_steps, "ranks": collectives.size()}
        records: dict[str, Any] = {PROGRESS_FILE: progress}
        if self._stream:
            records[LEDGER_FILE] = self._stream.state()
        with called_built(self.model):
            path = self._folder.save(epoch, step, self.model.save_weights, records)
        say("checkpoint", epoch=epoch, path=path)
