"""What a training script adds to `model.fit`: measurements, and checkpoints to resume from."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import IO, Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

from headrace.context import (
    METRICS,
    TENSORBOARD,
    TRAINER_REPORT,
    TrainerContext,
)
from headrace.tensorflow.checkpoint import Checkpoint
from headrace.tensorflow.ideal import measure_ideal_step_ms
from headrace.tensorflow.signals import Signals, say

__all__ = ["Checkpoint", "Measure"]

Logs = dict[str, Any] | None
REPORT_INTERVAL_S = 5.0
"""How often the report is renewed within an epoch, for jobs that end there."""


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
        self._log_every = max(log_every, 1)
        self._output_dir = TrainerContext.from_environ(os.environ).output_dir
        self._signals = Signals()
        self._next_report = 0.0
        self._ideal_ms = 0.0
        self._steps = 0
        self._epochs = 0
        self._last_end: float | None = None
        self._step_begin = 0.0
        self._step_s: list[float] = []
        self._train_begin = 0.0
        self._final_metrics: dict[str, float] = {}
        self._metrics: IO[str] | None = None
        self._scalars: tf.summary.SummaryWriter | None = None

    def on_train_begin(self, logs: Logs = None) -> None:
        self._ideal_ms = measure_ideal_step_ms(self.model, self._dataset, self._batch_size)
        if hvd.rank() == 0:
            self._output_dir.mkdir(parents=True, exist_ok=True)
            self._metrics = open(self._output_dir / METRICS, "a", encoding="utf-8")  # noqa: SIM115
            self._scalars = tf.summary.create_file_writer(str(self._output_dir / TENSORBOARD))
            say("ideal_step", step_ms=self._ideal_ms)
        self._train_begin = time.perf_counter()

    def on_test_batch_end(self, batch: int, logs: Logs = None) -> None:
        self._signals.progress()

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._last_end = None  # What lies between two epochs (evaluation, checkpoint) is no step.

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        self._step_begin = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        now = time.perf_counter()
        self._step_s.append(now - (self._last_end or self._step_begin))
        self._last_end = now
        self._steps += 1
        self._signals.progress()
        if hvd.rank() == 0:
            if self._steps == 1:
                say("first_step")
            if self._steps % self._log_every == 0:
                self._write_step(self._step_s[-self._log_every :])

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self._epochs += 1
        self._final_metrics = {name: float(value) for name, value in (logs or {}).items()}
        if hvd.rank() == 0:
            values = " ".join(f"{name}={value:.4g}" for name, value in self._final_metrics.items())
            print(f"epoch {epoch + 1}: {values}", flush=True)
            self._write({"epoch": epoch + 1, **self._final_metrics})
            self._write_report()

    def on_train_end(self, logs: Logs = None) -> None:
        self._signals.ended()
        if hvd.rank() == 0:
            self._write_report()
            for stream in (self._metrics, self._scalars):
                if stream:
                    stream.close()

    def _write_step(self, recent_s: list[float]) -> None:
        step_ms = float(np.mean(recent_s)) * 1000
        samples_per_s, share = self._samples_per_s(step_ms), self._input_bound(step_ms)
        say("step", step=self._steps, step_ms=step_ms, samples_per_s=samples_per_s, input_bound=share)
        if time.monotonic() >= self._next_report:
            self._next_report = time.monotonic() + REPORT_INTERVAL_S
            self._write_report()
        self._write({"step_time_ms": step_ms, "samples_per_s": samples_per_s, "input_bound_share": share,
                     "ideal_step_time_ms": self._ideal_ms})  # fmt: skip

    def _samples_per_s(self, step_ms: float) -> float:
        return self._batch_size * hvd.size() * 1000 / step_ms if step_ms else 0.0

    def _input_bound(self, step_ms: float) -> float:
        return min(max(1 - self._ideal_ms / step_ms, 0.0), 1.0) if step_ms else 0.0

    def _write(self, values: dict[str, float]) -> None:
        if self._metrics:
            self._metrics.write(json.dumps({"time": time.time(), "step": self._steps, **values}) + "\n")
            self._metrics.flush()
        if self._scalars:
            with self._scalars.as_default(step=self._steps):
                for name, value in values.items():
                    _write_scalar(name, value)

    def _write_report(self) -> None:
        # The very first step waits for the first batch of a cold pipeline; it is start-up.
        times_ms = np.asarray(self._step_s[1:] or self._step_s or [0.0]) * 1000
        median_ms = float(np.median(times_ms))
        report = {
            "world_size": hvd.size(),
            "global_batch_size": self._batch_size * hvd.size(),
            "epochs": self._epochs,
            "steps": self._steps,
            "step_time_ms": {
                "median": round(median_ms, 3),
                "mean": round(float(np.mean(times_ms)), 3),
                "p90": round(float(np.percentile(times_ms, 90)), 3),
            },
            "samples_per_s": round(self._samples_per_s(float(np.mean(times_ms))), 3),
            "ideal_step_time_ms": round(self._ideal_ms, 3),
            "input_bound_share": round(self._input_bound(float(np.mean(times_ms))), 4),
            "train_s": round(time.perf_counter() - self._train_begin, 3),
            "final_metrics": self._final_metrics,
        }
        _replace(self._output_dir / TRAINER_REPORT, json.dumps(report))


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def _write_scalar(name: str, value: float) -> None:
    # What tf.summary.scalar does, without the tensorboard package that it comes with.
    metadata = tf.compat.v1.SummaryMetadata(
        plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars"), data_class="DATA_CLASS_SCALAR"
    )
    tf.summary.write(name, tf.constant(value, tf.float32), metadata=metadata)
