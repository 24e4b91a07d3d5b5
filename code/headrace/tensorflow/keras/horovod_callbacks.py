"""Horovod's Keras callbacks for Keras 3; scripts use them as `hvd.callbacks` of `horovod_keras`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headrace.tensorflow.keras import rank_meter
from headrace.tensorflow.keras.broadcast import BroadcastGlobalVariablesCallback
from headrace.tensorflow.keras.metric_average import MetricAverageCallback
from headrace.tensorflow.keras.steps import Logs, StepCallback
from headrace.tensorflow.ranks import collectives

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class LearningRateScheduleCallback(StepCallback):
    """Sets the learning rate to `initial_lr × multiplier(epoch)` from `start_epoch` until `end_epoch`.

    Args:
        initial_lr: learning rate to multiply.
        multiplier: a number, or a function of the epoch. With `staircase=False` the function is called at each step,
            with a fractional epoch such as 2.25, and the rate changes each step.
        momentum_correction: unused. Horovod rescales momentum for one batch when the rate jumps; a warm-up that changes
            the rate a little each step has no jump to correct.
        start_epoch, end_epoch: the first epoch in which the callback acts, and the first in which it no longer does.
        steps_per_epoch: steps in an epoch, for `staircase=False`. None: the number that Keras knows. If Keras knows
            none, the callback counts the first epoch's steps, and changes the rate each step from the second epoch on.
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
        self.steps_per_epoch = steps_per_epoch
        self._multiplier = multiplier if callable(multiplier) else (lambda _: float(multiplier))
        self._epoch = 0

    def on_train_begin(self, logs: Logs = None) -> None:
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.steps_of_epoch()
            if not self.steps_per_epoch and collectives.rank() == 0:
                print(
                    f"{type(self).__name__}: the first epoch's number of steps is not known, so the learning rate "
                    "changes only from the second epoch on; to change it from the first step on, give steps_per_epoch",
                    flush=True,
                )

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        super().on_epoch_begin(epoch)
        self._epoch = epoch
        if self.staircase or not self.steps_per_epoch:
            self._set(float(epoch))

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        if not self.staircase and self.steps_per_epoch:
            self._set(self._epoch + (rank_meter.resumed_at + batch) / self.steps_per_epoch)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        if not self.steps_per_epoch:
            self.steps_per_epoch = self.ended()[0] + rank_meter.resumed_at
        if logs is not None:
            logs["learning_rate"] = float(np.asarray(self.model.optimizer.learning_rate))

    def _set(self, epoch: float) -> None:
        if self.start_epoch <= epoch and (self.end_epoch is None or epoch < self.end_epoch):
            self.model.optimizer.learning_rate = self.initial_lr * self._multiplier(epoch)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate linearly from `initial_lr` ÷ ranks to `initial_lr` over `warmup_epochs`.

    `initial_lr` is the full rate, already multiplied by the number of ranks. The method is from Goyal et al. 2017,
    "Accurate, Large Minibatch SGD", section 2.2.
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
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        super().on_epoch_begin(epoch, logs)
        if epoch == self.end_epoch:
            # The ramp may not have ended: a resumed epoch has fewer steps.
            self.model.optimizer.learning_rate = self.initial_lr

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose and collectives.rank() == 0:
            rate = float(np.asarray(self.model.optimizer.learning_rate))
            print(f"Epoch {epoch + 1}: learning rate warm-up ended at {rate:g}")
