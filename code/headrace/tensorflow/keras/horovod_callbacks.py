"""Horovod's Keras callbacks for Keras 3; reached as `horovod_keras.callbacks`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np

from headrace.errors import InputError
from headrace.tensorflow.keras import building, progress_counts
from headrace.tensorflow.keras.metric_average import MetricAverageCallback as MetricAverageCallback
from headrace.tensorflow.ranks import collectives

Logs = dict[str, Any] | None


def __getattr__(name: str) -> Any:
    if name == "BestModelCheckpoint":  # Horovod's for Spark, whose estimator gives it a path
        raise AttributeError(
            "headrace has no hvd.callbacks.BestModelCheckpoint: where hvd.rank() == 0, give fit "
            "keras.callbacks.ModelCheckpoint(path, save_best_only=True) after hvd.callbacks.MetricAverageCallback()"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def broadcast_state(model: keras.Model, root_rank: int = 0) -> None:
    """Give every rank the weights and the optimizer state of `root_rank`; random seeds stay each rank's own."""
    if collectives.size() == 1:
        return
    building.build_optimizer(model, getattr(model, "optimizer", None))
    variables = [*model.weights, *(variable for each in building.optimizers_of(model) for variable in each.variables)]
    if len(set(collectives.of_all_ranks(len(variables), "headrace.state"))) > 1:
        raise InputError(
            "an optimizer has state on some ranks and none on others: on every rank, call its build(variables) before "
            "a checkpoint is restored"
        )
    hvd.broadcast_variables([variable.value for variable in variables], root_rank=root_rank)


class Beginning:
    """Starts all ranks from one rank's state, once all have all weights: before the first step, or after it."""

    def __init__(self, root_rank: int = 0) -> None:
        self._root_rank, self._due = root_rank, True

    def before_step(self, model: keras.Model) -> None:
        """Every rank must call it before its first step; once more does no harm, and nothing later."""
        if not self._due:
            return
        everyones = collectives.of_all_ranks([building.is_built(model), len(model.weights)], "headrace.built")
        if all(built for built, _ in everyones):
            self.after_step(model)
        elif all(found == everyones[0] for found in everyones) and model.weights:
            hvd.broadcast_variables([variable.value for variable in model.weights], root_rank=self._root_rank)

    def after_step(self, model: keras.Model) -> None:
        """Every rank must call it after its first step, which makes the weights that were missing."""
        if self._due:
            self._due = False
            broadcast_state(model, self._root_rank)


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Starts all ranks from the state of `root_rank`: before the first step, or after it if it makes the weights."""

    def __init__(self, root_rank: int = 0) -> None:
        super().__init__()
        self.root_rank = root_rank
        self._beginning = Beginning(root_rank)

    def on_train_begin(self, logs: Logs = None) -> None:
        self._beginning = Beginning(self.root_rank)
        self._beginning.before_step(self.model)

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        self._beginning.before_step(self.model)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        self._beginning.after_step(self.model)


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Sets the learning rate to `initial_lr × multiplier(epoch)` between two epochs.

    Args:
        initial_lr: learning rate to multiply.
        multiplier: a number, or a function of the epoch; with `staircase=False` the epoch has a
            fraction and the rate changes each step.
        start_epoch, end_epoch: first epoch in which it acts, and the first in which it no longer does.
        steps_per_epoch: with `staircase=False`. Where neither it is given nor Keras knows it, the first epoch's
            steps are counted, and the rate changes each step from the second on.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self.initial_lr = initial_lr
        self.start_epoch, self.end_epoch = start_epoch, end_epoch
        self.staircase = staircase
        # Accepted for Horovod's sake. Its correction rescales momentum for one batch when the rate
        # jumps; a warm-up that changes a little each step has no jump to correct.
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self._multiplier = multiplier if callable(multiplier) else (lambda _: float(multiplier))
        self._epoch = self._made = 0

    def on_train_begin(self, logs: Logs = None) -> None:
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = (self.params or {}).get("steps")
            if not self.steps_per_epoch and collectives.rank() == 0:
                print(
                    f"{type(self).__name__}: how many steps an epoch has is known after the first, in which the "
                    "learning rate stays as it begins; give steps_per_epoch to have it change from the first step on",
                    flush=True,
                )

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._epoch = epoch
        if self.staircase or not self.steps_per_epoch:
            self._set(float(epoch))

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        if not self.staircase and self.steps_per_epoch:
            self._set(self._epoch + (progress_counts.resumed_at() + batch) / self.steps_per_epoch)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        self._made = batch + 1

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        if not self.steps_per_epoch:
            self.steps_per_epoch = self._made + progress_counts.resumed_at()
        if logs is not None:
            logs["learning_rate"] = float(np.asarray(self.model.optimizer.learning_rate))

    def _set(self, epoch: float) -> None:
        if self.start_epoch <= epoch and (self.end_epoch is None or epoch < self.end_epoch):
            self.model.optimizer.learning_rate = self.initial_lr * self._multiplier(epoch)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate linearly from `initial_lr / size` to `initial_lr` over `warmup_epochs`.

    `initial_lr` is the rate already scaled by the number of ranks. The method is that of Goyal et al.
    2017, "Accurate, Large Minibatch SGD", section 2.2.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            step = 1.0 / self.steps_per_epoch if self.steps_per_epoch else 0.0
            way = min((epoch + step) / warmup_epochs, 1.0)
            return 1.0 / collectives.size() * (way * (collectives.size() - 1) + 1)

        super().__init__(
            initial_lr,
            multiplier if warmup_epochs > 0 else 1.0,
            end_epoch=max(int(np.ceil(warmup_epochs)), 1),
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        super().on_epoch_begin(epoch, logs)
        if epoch == self.end_epoch:
            # The ramp may not have come to its end: a resumed epoch has fewer steps.
            self.model.optimizer.learning_rate = self.initial_lr

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose and collectives.rank() == 0:
            rate = float(np.asarray(self.model.optimizer.learning_rate))
            print(f"Epoch {epoch + 1}: learning rate warm-up ended at {rate:g}")
