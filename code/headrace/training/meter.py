"""What training is measured by, whoever trains and in whichever framework; rank 0's part of the summary."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Protocol

import numpy as np

from headrace.context import TrainerContext
from headrace.events import say
from headrace.paths import METRICS, TENSORBOARD, TRAINER_REPORT
from headrace.training.ideal_step import IdealStep
from headrace.training.signal_files import SignalFiles
from headrace.training.step_cpu import StepCpu

REPORT_INTERVAL_S = 5.0
"""How often the report is renewed within an epoch, for jobs that end there."""
MEDIAN_OF = 1000
"""The last so many steps."""


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
        sample_bytes: of a sample on the wire, asked when the report is written; 0: not known.
    """

    def __init__(
        self,
        rank: Callable[[], int],
        size: Callable[[], int],
        batch_size: int,
        log_every: int,
        open_scalars: Callable[[Path], Scalars],
        sample_bytes: Callable[[], float],
    ) -> None:
        self._rank, self._size = rank, size
        self._batch_size, self._log_every = batch_size, max(log_every, 1)
        context = TrainerContext.from_environ(os.environ)
        self._output_dir = context.output_dir
        self._signals = SignalFiles(context.signal_dir, rank)
        self._open_scalars, self._sample_bytes = open_scalars, sample_bytes
        self._next_report = 0.0
        self._ideal_step = IdealStep()
        self._cpu, self._knows_waited_cpu = StepCpu(), False
        self._steps = self._epochs = self._total_steps = 0
        self._epoch_steps = self._epoch_began = 0  # of the longest epoch: a resumed one is shorter
        self._step_s: list[float] = []
        self._waited_s: list[float] = []
        self._train_begin = 0.0
        self._final_metrics: dict[str, float] = {}
        self._metrics: IO[str] | None = None
        self._scalars: Scalars | None = None
        self._disk_failed = False

    def expect(self, steps: int) -> None:
        """How many steps this run is going to make, where that is known before the first."""
        self._total_steps = self._total_steps or steps

    def begin(self, ideal: IdealStep | None = None) -> None:
        """Training begins. None: no ideal step was measured; each step's waiting is."""
        self._ideal_step = ideal or IdealStep()
        if self._rank() == 0:
            with self._disk():
                self._output_dir.mkdir(parents=True, exist_ok=True)
                self._metrics = open(self._output_dir / METRICS, "a", encoding="utf-8")  # noqa: SIM115
                self._scalars = self._open_scalars(self._output_dir / TENSORBOARD)
            if ideal:
                say("ideal_step", step_ms=ideal.ms, error_ms=ideal.error_ms)
        self._train_begin = time.perf_counter()

    def progress(self) -> None:
        """Something was done that is no step."""
        self._signals.progress()

    def steps(self, made: int, took_s: float, waited_s: float | None = None, waited_cpu_s: float | None = None) -> None:
        """So many steps were made.

        Args:
            took_s: for all of them.
            waited_s: how much of that went by before their batch was there.
            waited_cpu_s: CPU seconds of this process in that time, where nothing else goes on in it meanwhile.
        """
        self._step_s += [took_s / made] * made
        self._cpu.made(made, waited_cpu_s or 0.0)
        self._knows_waited_cpu |= waited_cpu_s is not None
        if waited_s is not None:
            self._waited_s += [waited_s / made] * made
        before, self._steps = self._steps, self._steps + made
        self._signals.progress()
        if self._rank() == 0:
            if not before:
                say("first_step", **({"total_steps": self._total_steps} if self._total_steps else {}))
            if self._steps // self._log_every != before // self._log_every:
                self._write_step(max(self._log_every, made))

    def steps_over(self) -> None:
        """What comes until the next step is none of it: an evaluation, a checkpoint."""
        self._cpu.over()

    def epoch(self, number: int, metrics: dict[str, float]) -> None:
        """Epoch `number` (from 1) is over, with these metrics."""
        self.steps_over()
        self._epochs += 1
        self._epoch_steps = max(self._epoch_steps, self._steps - self._epoch_began)
        self._epoch_began = self._steps
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
                    with self._disk():
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
            "steps_per_epoch": self._epoch_steps,
            "step_time_ms": {
                "median": round(float(np.median(times_ms)), 3),
                "mean": round(mean_ms, 3),
                "p90": round(float(np.percentile(times_ms, 90)), 3),
            },
            "samples_per_s": round(self._samples_per_s(mean_ms), 3),
            "ideal_step_time_ms": round(self._ideal(len(times_ms)), 3),
            "ideal_step_time_error_ms": round(self._ideal_step.error_ms, 3),
            "input_bound_share": round(self._input_bound(mean_ms, len(times_ms)), 4),
            "rank_cpu_s_per_step": round(self._cpu.per_step_s(), 6),
            "compute_cpu_s_per_step": round(self._compute_cpu_s(), 6),
            "sample_bytes": round(self._sample_bytes(), 3),
            "train_s": round(time.perf_counter() - self._train_begin, 3),
            "final_metrics": {name: _finite(value) for name, value in self._final_metrics.items()},
        }
        with self._disk():
            _replace(self._output_dir / TRAINER_REPORT, json.dumps(report))

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        """A disk that is full or gone costs figures, and no step."""
        try:
            yield
        except OSError as error:
            if not self._disk_failed:
                print(f"figures are lost: {error}", flush=True)
            self._disk_failed = True

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
        """Milliseconds of a step that waits for nothing: measured before training, or what waiting leaves of a step.

        What half of the steps have done better counts, where the first measurement was worse.
        """
        if self._ideal_step.ms or not self._waited_s:
            made_s = self._step_s[max(len(self._step_s) - MEDIAN_OF, 1) :]
            return min(self._ideal_step.ms, float(np.median(made_s)) * 1000) if made_s else self._ideal_step.ms
        return max(float(np.mean(self._step_s[-recent:]) - np.mean(self._waited_s[-recent:])) * 1000, 0.0)

    def _compute_cpu_s(self) -> float:
        """CPU seconds of a step on this rank without those that batches cost; 0: not known."""
        if self._ideal_step.ms:
            return self._ideal_step.cpu_s
        return self._cpu.outside_waiting_s() if self._knows_waited_cpu else 0.0

    def _input_bound(self, step_ms: float, recent: int) -> float:
        return min(max(1 - self._ideal(recent) / step_ms, 0.0), 1.0) if step_ms else 0.0

    def _write(self, values: dict[str, float]) -> None:
        if self._metrics:
            with self._disk():
                record = {name: _finite(value) for name, value in values.items()}
                self._metrics.write(json.dumps({"time": time.time(), "step": self._steps, **record}) + "\n")
                self._metrics.flush()
        if self._scalars:
            with self._disk():
                self._scalars.write(self._steps, values)


def _finite(value: float) -> float | None:
    """JSON has no word for what is no number."""
    return value if math.isfinite(value) else None


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
