"""What a training script adds to `model.fit`: measurements, and checkpoints to resume from."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import IO, Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

from headrace.context import (
    CHECKPOINTS_ON_REQUEST,
    METRICS,
    STOP_REQUEST,
    TENSORBOARD,
    TRAINER_REPORT,
    TrainerContext,
)
from headrace.events import format_event
from headrace.tensorflow.ideal import measure_ideal_step_ms

Logs = dict[str, Any] | None
KEPT_CHECKPOINTS = 3
PROGRESS_INTERVAL_S = 0.5
REPORT_INTERVAL_S = 5.0
"""How often the report is renewed within an epoch, for jobs that end there."""
STOPPING_S = 30.0
"""After a checkpoint on request, rank 0 waits here to be ended."""
WEIGHTS_FILE = "model.weights.h5"


class _Signals:
    """Tells this host's launcher that the rank makes progress; does nothing without a launcher."""

    def __init__(self) -> None:
        folder = TrainerContext.from_environ(os.environ).signal_dir
        self._file = folder / f"rank{hvd.rank()}" if folder.name else None
        self._stop = folder / STOP_REQUEST if folder.name else None
        self._next = 0.0

    def progress(self) -> None:
        """A step was made, or began; cheap enough to be called on each."""
        now = time.monotonic()
        if self._file and now >= self._next:
            self._next = now + PROGRESS_INTERVAL_S
            self._file.touch()

    def ended(self) -> None:
        """No more steps will come; what follows is judged by its output again."""
        if self._file:
            self._file.unlink(missing_ok=True)

    def stop_requested(self) -> bool:
        """Whether the job is to end after one more checkpoint."""
        return self._stop is not None and self._stop.exists()


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
        self._signals = _Signals()
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
            _say("ideal_step", step_ms=self._ideal_ms)
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
                _say("first_step")
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
        _say("step", step=self._steps, step_ms=step_ms, samples_per_s=samples_per_s, input_bound=share)
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
        self._signals = _Signals()
        self._epoch = 0

    def on_train_begin(self, logs: Logs = None) -> None:
        if hvd.rank() == 0:
            _say(CHECKPOINTS_ON_REQUEST)

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
        _say("checkpoint", epoch=epoch, path=final)

    def _checkpoints(self) -> list[Path]:
        return sorted(path for path in self._folder.glob("epoch-*") if (path / WEIGHTS_FILE).is_file())


def _sync(path: Path) -> None:
    """Have the file or folder on disk before going on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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


def _say(event_name: str, /, **fields: object) -> None:
    print(format_event(event_name, **fields), flush=True)
