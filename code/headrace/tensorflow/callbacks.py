"""What a training script adds to `model.fit`: measurements, and checkpoints to resume from."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from headrace.tensorflow.keras import progress_counts
from headrace.tensorflow.keras.custom_loop import Training
from headrace.tensorflow.keras.model_checkpoint import Checkpoint
from headrace.tensorflow.keras.rank_meter import open_meter
from headrace.tensorflow.keras.step_time import measure_ideal_step
from headrace.tensorflow.ranks import collectives

__all__ = ["Checkpoint", "Measure", "Training", "on_rank_0"]

Logs = dict[str, Any] | None


class Measure(keras.callbacks.Callback):
    """Measures steps; give it to `fit` on every rank. Rank 0 writes what it sees.

    Before training it measures the ideal step time. While training it writes step time, samples/s
    over all ranks and the input-bound share (1 − ideal ÷ actual step time) as log events, to
    `metrics.jsonl` and as TensorBoard scalars; at the end, the trainer's part of `summary.json`.

    Args:
        dataset: what `fit` trains on.
        batch_size: per rank.
        log_every: steps between two log events.
    """

    def __init__(self, dataset: tf.data.Dataset, batch_size: int, log_every: int = 10) -> None:
        super().__init__()
        self._dataset = dataset
        self._batch_size = batch_size
        self._meter = open_meter(batch_size, log_every)
        self._last_end: float | None = None
        self._step_begin = 0.0
        self._batch = 0

    def on_train_begin(self, logs: Logs = None) -> None:
        self._meter.begin(measure_ideal_step(self.model, self._dataset, self._batch_size))

    def on_test_begin(self, logs: Logs = None) -> None:
        self._meter.steps_over()

    def on_test_batch_end(self, batch: int, logs: Logs = None) -> None:
        self._meter.progress()

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._last_end = None  # What lies between two epochs (evaluation, checkpoint) is no step.
        self._batch = 0
        self._meter.expect((self.params.get("epochs", 0) - epoch) * (self.params.get("steps") or 0))

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        self._step_begin = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        now = time.perf_counter()
        self._meter.resumes(progress_counts.resumed_at())
        # More than one with `steps_per_execution`; Keras tells a last execution that is cut short as a whole one.
        of_epoch = min(batch + 1, self.params.get("steps") or batch + 1)
        made, self._batch = of_epoch - self._batch, of_epoch
        # What lies between two steps is other callbacks, those after this one in `fit`'s list above all.
        before = self._last_end or self._step_begin
        self._meter.steps(made, now - before, between_s=self._step_begin - before)
        self._last_end = now

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self._meter.epoch(epoch + 1, dict(_numbers(logs or {})))

    def on_train_end(self, logs: Logs = None) -> None:
        self._meter.end()


def _numbers(logs: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Of a metric with a number for each class, as F1Score is, each under a name of its own."""
    for name, value in logs.items():
        flat = np.asarray(value, np.float64).ravel().tolist()
        yield from [(name, flat[0])] if len(flat) == 1 else [(f"{name}_{i}", each) for i, each in enumerate(flat)]


def on_rank_0(*given: keras.callbacks.Callback) -> list[keras.callbacks.Callback]:
    """These callbacks on rank 0, none on the others: for what writes files, as ModelCheckpoint and TensorBoard do.

    Not for what changes training (EarlyStopping, ReduceLROnPlateau: all ranks must decide alike, after
    `MetricAverageCallback`), nor for BackupAndRestore, whose place `callbacks.Checkpoint` takes.
    """
    return list(given) if collectives.rank() == 0 else []
