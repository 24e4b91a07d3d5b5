"""Callbacks for `model.fit`, and `Training` for custom loops: they measure training and keep checkpoints."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from headrace.tensorflow.keras import broadcast, metric_average, rank_meter
from headrace.tensorflow.keras.keras_ideal_step import measure_ideal_step
from headrace.tensorflow.keras.model_checkpoint import EPOCH_OVER, Checkpoint
from headrace.tensorflow.keras.optimizer import prepare
from headrace.tensorflow.keras.steps import Logs, StepCallback
from headrace.tensorflow.ranks import collectives
from headrace.tensorflow.sharding.dataset_graph import INFINITE

__all__ = ["Checkpoint", "Measure", "Training", "on_rank_0"]


class Measure(StepCallback):
    """Measures training steps. Give it to `fit` on every rank, after the broadcast callback; rank 0 writes the figures.

    Before training it measures the ideal step time. During training it writes step time, samples/s over all ranks and
    the input-bound share (1 − ideal ÷ mean step time) as log events, to `metrics.jsonl` and as TensorBoard scalars.
    At the end it writes the trainer's part of `summary.json`.

    Args:
        dataset: the dataset that `fit` trains on.
        batch_size: samples that one rank takes in a step.
        log_every: steps between two log events.
    """

    def __init__(self, dataset: tf.data.Dataset, batch_size: int, log_every: int = 10) -> None:
        super().__init__()
        self._dataset = dataset
        self._batch_size = batch_size
        self._meter = rank_meter.open_meter(batch_size, log_every)
        self._step_began = 0.0
        self._told = 0
        """Steps of this epoch that the meter has counted."""

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        prepare(model)
        broadcast.measured[model] = True

    def on_train_begin(self, logs: Logs = None) -> None:
        if broadcast.measured[self.model]:
            self._meter.begin(measure_ideal_step(self.model, self._dataset, self._batch_size))
            return
        self._meter.begin()
        print("the ideal step is not measured: pass a callbacks.Measure to fit() on every rank", flush=True)

    def on_test_begin(self, logs: Logs = None) -> None:
        self._take_last()
        self._meter.steps_over()

    def on_test_batch_begin(self, batch: int, logs: Logs = None) -> None:
        self._meter.progress()

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        super().on_epoch_begin(epoch)
        self._told = 0
        self._meter.expect((self.params.get("epochs", 0) - epoch) * self.steps_of_epoch())

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        now = time.perf_counter()
        if batch > self._told:
            ended, ended_at = self.ended()
            # Callbacks run between two steps. If the last step's end is not known yet, the callbacks' time counts as 0.
            self._take(batch, now, between_s=max(now - ended_at, 0.0) if ended == batch else 0.0)
        self._step_began = now

    def _take_last(self) -> None:
        """Report an epoch's last steps to the meter. `on_train_batch_begin` reports all earlier steps."""
        ended, ended_at = self.ended()
        if ended > self._told:
            self._take(ended, ended_at)

    def _take(self, steps: int, until: float, between_s: float = 0.0) -> None:
        self._meter.resumes(rank_meter.resumed_at)
        made, self._told = steps - self._told, steps
        self._meter.steps(made, until - self._step_began, between_s=between_s)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self._take_last()
        rank_meter.warn_if_apart()
        self._meter.epoch(epoch + 1, dict(_numbers(logs or {})))

    def on_train_end(self, logs: Logs = None) -> None:
        self._meter.end()


def _numbers(logs: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield each metric's name and value. A metric with one value per class, such as F1Score, gives NAME_0, NAME_1 …"""
    for name, value in logs.items():
        flat = np.asarray(value, np.float64).ravel().tolist()
        yield from [(name, flat[0])] if len(flat) == 1 else [(f"{name}_{i}", each) for i, each in enumerate(flat)]


class Training:
    """Measures a custom training loop. Every rank must run the same epochs and steps.

        training = callbacks.Training(model, optimizer, batch_size=32, checkpoint=callbacks.Checkpoint())
        for epoch in training.epochs(5):
            for x, y in training.steps(train, steps_per_epoch):
                loss = train_step(x, y)
            training.end_epoch(loss=loss)

    All ranks start from the newest checkpoint. Without one they start from rank 0's weights, even if the model gets its
    weights only in the first step. `end_epoch` averages metrics and moving statistics over the ranks. The input-bound
    share is the share of time that `steps` waits for a batch.

    Args:
        model: the model to train.
        optimizer: the model's optimizer; its state is broadcast and kept in checkpoints.
        batch_size: samples that one rank takes in a step.
        log_every: steps between two log events.
        checkpoint: keeps a checkpoint of each epoch, and resumes from the newest one. None: no checkpoints.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        batch_size: int,
        log_every: int = 10,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self._model, self._checkpoint = model, checkpoint
        self._meter = rank_meter.open_meter(batch_size, log_every)
        self._epoch = self._epochs = 0
        self._endless: tuple[tf.data.Dataset, Iterator[Any]] | None = None
        self._beginning = broadcast.BroadcastGlobalVariablesCallback()
        self._beginning.set_model(model)
        broadcast.build_optimizer(model, optimizer)
        if getattr(model, "optimizer", None) is None:
            model.optimizer = optimizer  # a checkpoint saves model.optimizer

    def epochs(self, epochs: int) -> Iterator[int]:
        """Yield the number of each epoch that is still to be trained; the first epoch is 0."""
        checkpoint = self._checkpoint
        first, self._epochs = 0, epochs
        if checkpoint:
            checkpoint.set_model(self._model)
            checkpoint.set_params({"epochs": epochs, "steps": None})
            first = checkpoint.restore(self._model)
        self._beginning.on_train_begin()
        self._meter.begin()
        if checkpoint:
            checkpoint.on_train_begin()
        try:
            for self._epoch in range(first, epochs):
                yield self._epoch
        finally:  # also if the script leaves its loop early
            self._endless = None
            self._meter.end()

    def steps(self, dataset: tf.data.Dataset, steps: int | None = None) -> Iterator[Any]:
        """Yield one epoch's `steps` batches (None: all). As in `fit`, an endless dataset goes on in the next epoch."""
        checkpoint = self._checkpoint
        if checkpoint:
            checkpoint.set_params({"epochs": 0, "steps": steps})
            checkpoint.on_epoch_begin(self._epoch)
            steps = steps and steps - checkpoint.skipped_steps
            self._meter.resumes(checkpoint.skipped_steps)
        self._meter.expect((self._epochs - self._epoch) * (steps or 0))
        batches = self._batches(dataset, steps)
        asked_at = time.perf_counter()
        try:
            for number, batch in enumerate(batches):
                waited_s = time.perf_counter() - asked_at
                if checkpoint:
                    checkpoint.on_train_batch_begin(number)
                self._beginning.on_train_batch_begin(number)
                yield batch
                now = time.perf_counter()
                self._beginning.after_step()
                self._meter.steps(1, now - asked_at, waited_s)
                asked_at = now
                if checkpoint:
                    checkpoint.on_train_batch_end(number)
                    if getattr(self._model, "stop_training", None) is EPOCH_OVER:
                        break
        finally:  # also if the script leaves its loop early
            self._meter.steps_over()

    def _batches(self, dataset: tf.data.Dataset, steps: int | None) -> Iterator[Any]:
        if int(dataset.cardinality()) != INFINITE:
            return iter(dataset if steps is None else dataset.take(steps))
        if self._endless is None or self._endless[0] is not dataset:
            self._endless = dataset, iter(dataset)
        return itertools.islice(self._endless[1], steps)

    def end_epoch(self, **metrics: Any) -> dict[str, float]:
        """End the epoch, and return its metrics averaged over the ranks."""
        rank_meter.warn_if_apart()
        own = {name: float(metrics[name]) for name in sorted(metrics)}
        everyones = collectives.of_all_ranks(own, "headrace.metrics") if own else []
        averaged = {name: float(np.mean([each[name] for each in everyones])) for name in own}
        metric_average.average_moving_statistics(self._model)
        self._meter.epoch(self._epoch + 1, averaged)
        if self._checkpoint:
            self._checkpoint.on_epoch_end(self._epoch)
        return averaged


def on_rank_0(*given: keras.callbacks.Callback) -> list[keras.callbacks.Callback]:
    """Return these callbacks on rank 0, and none on other ranks.

    Use it for callbacks that write files: ModelCheckpoint and TensorBoard. Callbacks that change training, such as
    EarlyStopping, belong on all ranks, after `MetricAverageCallback`, so that all ranks decide alike. In place of
    BackupAndRestore use `callbacks.Checkpoint`.
    """
    return list(given) if collectives.rank() == 0 else []
