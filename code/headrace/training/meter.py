"""What training is measured by, whoever trains and in whichever framework; rank 0's part of the summary."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Protocol

import numpy as np

from headrace.context import TrainerContext
from headrace.events import say
from headrace.paths import METRICS, TENSORBOARD, TRAINER_REPORT
from headrace.training.signal_files import SignalFiles

REPORT_INTERVAL_S = 5.0
"""How often the report is renewed within an epoch, for jobs that end there."""


class Scalars(Protocol):
    """Where figures go for TensorBoard."""

    def write(self, step: int, values: dict[str, float]) -> None:
        """These figures, at this step."""

    def close(self) -> None:
        """No more come."""


class Meter:
    """Step time, samples/s over all ranks and the input-bound share, of rank 0; the others only show progress.

    It writes log events, `metrics.jsonl`, TensorBoard scalars, and the trainer's part of `summary.json`.

    Args:
        rank: says which one this process is, once that is known.
        size: says how many ranks there are.
        batch_size: per rank.
        log_every: steps between two log events.
        open_scalars: opens TensorBoard's files in a folder.
    """

    def __init__(
        self,
        rank: Callable[[], int],
        size: Callable[[], int],
        batch_size: int,
        log_every: int,
        open_scalars: Callable[[Path], Scalars],
    ) -> None:
        self._rank, self._size = rank, size
        self._batch_size, self._log_every = batch_size, max(log_every, 1)
        context = TrainerContext.from_environ(os.environ)
        self._output_dir = context.output_dir
        self._signals = SignalFiles(context.signal_dir, rank)
        self._open_scalars = open_scalars
        self._next_report = 0.0
        self._ideal_ms = 0.0
        self._steps = self._epochs = 0
        self._step_s: list[float] = []
        self._waited_s: list[float] = []
        self._train_begin = 0.0
        self._final_metrics: dict[str, float] = {}
        self._metrics: IO[str] | None = None
        self._scalars: Scalars | None = None

    def begin(self, ideal_ms: float) -> None:
        """Training begins. `ideal_ms`: of a step on a batch in memory; 0 where only the waiting is measured."""
        self._ideal_ms = ideal_ms
        if self._rank() == 0:
            self._output_dir.mkdir(parents=True, exist_ok=True)
            self._metrics = open(self._output_dir / METRICS, "a", encoding="utf-8")  # noqa: SIM115
            self._scalars = self._open_scalars(self._output_dir / TENSORBOARD)
            if ideal_ms:
                say("ideal_step", step_ms=ideal_ms)
        self._train_begin = time.perf_counter()

    def progress(self) -> None:
        """Something was done that is no step."""
        self._signals.progress()

    def steps(self, made: int, took_s: float, waited_s: float | None = None) -> None:
        """So many steps were made; `waited_s`: how much of their time went by before their batch was there."""
        self._step_s += [took_s / made] * made
        if waited_s is not None:
            self._waited_s += [waited_s / made] * made
        before, self._steps = self._steps, self._steps + made
        self._signals.progress()
        if self._rank() == 0:
            if not before:
                say("first_step")
            if self._steps // self._log_every != before // self._log_every:
                self._write_step(max(self._log_every, made))

    def epoch(self, number: int, metrics: dict[str, float]) -> None:
        """Epoch `number` (from 1) is over, with these metrics."""
        self._epochs += 1
        self._final_metrics = metrics
        if self._rank() == 0:
            values = " ".join(f"{name}={value:.4g}" for name, value in metrics.items())
            print(f"epoch {number}: {values}", flush=True)
            self._write({"epoch": number, **metrics})
            self.write_report()

    def end(self) -> None:
        """Training is over."""
        self._signals.ended()
        if self._rank() == 0:
            self.write_report()
            for stream in (self._metrics, self._scalars):
                if stream:
                    stream.close()

    def write_report(self) -> None:
        """The trainer's part of `summary.json`, as it is now."""
        # The very first step waits for the first batch of a cold pipeline; it is start-up.
        times_ms = np.asarray(self._step_s[1:] or self._step_s or [0.0]) * 1000
        mean_ms = float(np.mean(times_ms))
        report = {
            "world_size": self._size(),
            "global_batch_size": self._batch_size * self._size(),
            "epochs": self._epochs,
            "steps": self._steps,
            "step_time_ms": {
                "median": round(float(np.median(times_ms)), 3),
                "mean": round(mean_ms, 3),
                "p90": round(float(np.percentile(times_ms, 90)), 3),
            },
            "samples_per_s": round(self._samples_per_s(mean_ms), 3),
            "ideal_step_time_ms": round(self._ideal(len(times_ms)), 3),
            "input_bound_share": round(self._input_bound(mean_ms, len(times_ms)), 4),
            "train_s": round(time.perf_counter() - self._train_begin, 3),
            "final_metrics": self._final_metrics,
        }
        _replace(self._output_dir / TRAINER_REPORT, json.dumps(report))

    def _write_step(self, recent: int) -> None:
        step_ms = float(np.mean(self._step_s[-recent:])) * 1000
        samples_per_s, share = self._samples_per_s(step_ms), self._input_bound(step_ms, recent)
        say("step", step=self._steps, step_ms=step_ms, samples_per_s=samples_per_s, input_bound=share)
        if time.monotonic() >= self._next_report:
            self._next_report = time.monotonic() + REPORT_INTERVAL_S
            self.write_report()
        self._write({"step_time_ms": step_ms, "samples_per_s": samples_per_s, "input_bound_share": share,
                     "ideal_step_time_ms": self._ideal(recent)})  # fmt: skip

    def _samples_per_s(self, step_ms: float) -> float:
        return self._batch_size * self._size() * 1000 / step_ms if step_ms else 0.0

    def _ideal(self, recent: int) -> float:
        """Milliseconds of a step that waits for nothing: measured before training, or what waiting leaves of a step."""
        if self._ideal_ms or not self._waited_s:
            return self._ideal_ms
        return max(float(np.mean(self._step_s[-recent:]) - np.mean(self._waited_s[-recent:])) * 1000, 0.0)

    def _input_bound(self, step_ms: float, recent: int) -> float:
        return min(max(1 - self._ideal(recent) / step_ms, 0.0), 1.0) if step_ms else 0.0

    def _write(self, values: dict[str, float]) -> None:
        if self._metrics:
            self._metrics.write(json.dumps({"time": time.time(), "step": self._steps, **values}) + "\n")
            self._metrics.flush()
        if self._scalars:
            self._scalars.write(self._steps, values)


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
