"""Callbacks that a training script gives `model.fit`: measurements, and checkpoints to resume from."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from headrace.tensorflow.keras import broadcast, rank_meter
from headrace.tensorflow.keras.custom_loop import Training
from headrace.tensorflow.keras.keras_ideal_step import measure_ideal_step
from headrace.tensorflow.keras.model_checkpoint import Checkpoint
from headrace.tensorflow.keras.optimizer import prepare
from headrace.tensorflow.keras.steps import Logs, StepCallback
from headrace.tensorflow.ranks import collectives

__all__ = ["Checkpoint", "Measure", "Training", "on_rank_0"]


class Measure(StepCallback):
    """Measures training steps. Give it to `fit` on every rank, after the broadcast callback; rank 0 writes its figures.

    Before training it measures the ideal step time. While training it writes step time, samples/s
    over all ranks and the input-bound share (1 − ideal ÷ actual step time) as log events, to
    `metrics.jsonl` and as TensorBoard scalars; at the end, the trainer's part of `summary.json`.

    Args:
        dataset: the dataset that `fit` trains on.
        batch_size: samples of one rank in a step.
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
        broadcast.will_be_measured(model)

    def on_train_begin(self, logs: Logs = None) -> None:
        if broadcast.all_measure(self.model):
            self._meter.begin(measure_ideal_step(self.model, self._dataset, self._batch_size))
            return
        self._meter.begin()
        print("the ideal step is not measured: give callbacks.Measure to fit on every rank", flush=True)

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
            # Callbacks run between two steps. No such time is known of a step that ends in the background: 0.
            self._take(batch, now, between_s=max(now - ended_at, 0.0) if ended == batch else 0.0)
        self._step_began = now

    def _take_last(self) -> None:
        """Give the meter the last steps of an epoch as soon as their end is known."""
        ended, ended_at = self.ended()
        if ended > self._told:
            self._take(ended, ended_at)

    def _take(self, steps: int, until: float, between_s: float = 0.0) -> None:
        self._meter.resumes(rank_meter.resumed_at())
        made, self._told = steps - self._told, steps
        self._meter.steps(made, until - self._step_began, between_s=between_s)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self._take_last()
        rank_meter.warn_if_apart()
        self._meter.epoch(epoch + 1, dict(_numbers(logs or {})))

    def on_train_end(self, logs: Logs = None) -> None:
        self._meter.end()


def _numbers(logs: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield names and numbers; a metric with a number for each class, such as F1Score, yields NAME_0, NAME_1 …"""
    for name, value in logs.items():
        flat = np.asarray(value, np.float64).ravel().tolist()
        yield from [(name, flat[0])] if len(flat) == 1 else [(f"{name}_{i}", each) for i, each in enumerate(flat)]


def on_rank_0(*given: keras.callbacks.Callback) -> list[keras.callbacks.Callback]:
    """Return these callbacks on rank 0, and none on the others. Use it for ModelCheckpoint, which writes files.

    Likewise for TensorBoard. Callbacks that change training (EarlyStopping, ReduceLROnPlateau) belong on all ranks,
    after `MetricAverageCallback`, since all must decide alike. `callbacks.Checkpoint` replaces BackupAndRestore.
    """
    return list(given) if collectives.rank() == 0 else []
