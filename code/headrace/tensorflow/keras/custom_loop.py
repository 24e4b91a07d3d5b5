"""Custom training loops with the measurements, progress and checkpoints that `fit` gets from callbacks."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from headrace.tensorflow import horovod_keras
from headrace.tensorflow.keras import broadcast, metric_average, rank_meter
from headrace.tensorflow.keras.model_checkpoint import EPOCH_OVER, Checkpoint
from headrace.tensorflow.sharding.dataset_graph import INFINITE


class Training:
    """Measures a custom loop over epochs and steps; every rank must make the same ones.

        training = callbacks.Training(model, optimizer, batch_size=32, checkpoint=callbacks.Checkpoint())
        for epoch in training.epochs(5):
            for x, y in training.steps(train, steps_per_epoch):
                loss = train_step(x, y)
            training.end_epoch(loss=loss)

    It starts all ranks from rank 0's weights (after the first step if that makes them), or from the checkpoint, and
    averages metrics (in `end_epoch`) and moving statistics over the ranks. The input-bound share is the share of time
    that `steps` waits for a batch.

    Args:
        model: the model to train.
        optimizer: the model's optimizer; its state is broadcast, and held by checkpoints, too.
        batch_size: samples of one rank in a step.
        log_every: steps between two log events.
        checkpoint: keeps a checkpoint of each epoch, and resumes from the newest one; None: there are no checkpoints.
    """

    def __init__(self, model: keras.Model, optimizer: keras.optimizers.Optimizer, batch_size: int,
                 log_every: int = 10, checkpoint: Checkpoint | None = None) -> None:  # fmt: skip
        self._model, self._checkpoint = model, checkpoint
        self._meter = rank_meter.open_meter(batch_size, log_every)
        self._epoch = self._epochs = 0
        self._endless: tuple[tf.data.Dataset, Iterator[Any]] | None = None
        self._beginning = broadcast.Beginning()
        broadcast.build_optimizer(model, optimizer)
        if getattr(model, "optimizer", None) is None:
            model.optimizer = optimizer  # where checkpoints look for it

    def epochs(self, epochs: int) -> Iterator[int]:
        """Yield the epochs that are still to be trained, counted from 0."""
        checkpoint = self._checkpoint
        first, self._epochs = 0, epochs
        if checkpoint:
            checkpoint.set_model(self._model)
            checkpoint.set_params({"epochs": epochs, "steps": None})
            first = checkpoint.restore(self._model)
        self._beginning.before_step(self._model)
        self._meter.begin()
        if checkpoint:
            checkpoint.on_train_begin()
        try:
            for self._epoch in range(first, epochs):
                yield self._epoch
        finally:  # also where the script breaks the loop
            self._endless = None
            self._meter.end()

    def steps(self, dataset: tf.data.Dataset, steps: int | None = None) -> Iterator[Any]:
        """Yield `steps` batches of an epoch, or all. As in `fit`, each epoch continues an endless dataset."""
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
                self._beginning.steps(self._model)
                yield batch
                now = time.perf_counter()
                self._beginning.after_step(self._model)
                self._meter.steps(1, now - asked_at, waited_s)
                asked_at = now
                if checkpoint:
                    checkpoint.on_train_batch_end(number)
                    if getattr(self._model, "stop_training", None) is EPOCH_OVER:
                        break
        finally:  # also where the script breaks out of its loop
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
        averaged = horovod_keras.average_metrics(metrics) if metrics else {}
        metric_average.average_moving_statistics(self._model)
        self._meter.epoch(self._epoch + 1, averaged)
        if self._checkpoint:
            self._checkpoint.on_epoch_end(self._epoch)
        return averaged
