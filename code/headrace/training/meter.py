"""The meter of training in any framework. Rank 0 also writes the trainer's part of the summary."""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Protocol

from headrace.cluster.run_files import METRICS, TENSORBOARD, TRAINER_REPORT, write_json
from headrace.events import say
from headrace.rank import failure
from headrace.rank.context import TrainerContext
from headrace.training.fits import Fit, together
from headrace.training.ideal_step import IdealStep
from headrace.training.signal_files import SignalFiles
from headrace.training.step_times import Sums

REPORT_INTERVAL_S = 5.0
"""Seconds between two reports within an epoch. A job that ends in mid-epoch still has a recent report."""
_ended: list[Fit] = []
"""Trainings of this process that have ended. A later training continues their step count."""


class Scalars(Protocol):
    """A writer of numbers for TensorBoard."""

    def write(self, step: int, values: dict[str, float]) -> None:
        """Write these numbers for this step."""

    def close(self) -> None:
        """Close the files."""


class Meter:
    """Measures step time, samples/s of all ranks and the input-bound share, on rank 0. Other ranks only show progress.

    Rank 0 writes log events, `metrics.jsonl`, TensorBoard scalars, and the trainer's part of `summary.json`.

    Args:
        rank: returns this process's rank, which may be known only after the meter is made.
        size: returns the number of ranks.
        batch_size: samples of one rank in a step.
        log_every: steps between two log events.
        open_scalars: opens TensorBoard's files in a folder.
        sample_bytes: returns the size of a sample on the network in bytes, or 0 if not known. Called for each report.
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
        self._output_dir = context.output_dir.absolute()  # the script may change its working folder
        self._signals = SignalFiles(context.signal_dir, rank)
        self._open_scalars, self._sample_bytes = open_scalars, sample_bytes
        self._next_report = 0.0
        self._fit, self._before = Fit(), list[Fit]()
        self._total_steps = self._epoch_began = 0
        self._train_begin = 0.0
        self._final_metrics: dict[str, float] = {}
        self._metrics: IO[str] | None = None
        self._scalars: Scalars | None = None
        self._disk_failed = False

    def expect(self, steps: int) -> None:
        """Set the number of steps that this run will make, if that is known before the first step."""
        self._total_steps = self._total_steps or steps

    def resumes(self, steps: int) -> None:
        """Set how many of the first epoch's steps an earlier run made. Call this before this run's first step ends."""
        if not self._fit.steps:
            self._epoch_began = -steps

    def batches_hold(self, samples: float) -> None:
        """Set the mean number of samples in a batch, if it is known only once batches arrive."""
        self._batch_size = max(round(samples), 1)

    def begin(self, ideal: IdealStep | None = None) -> None:
        """Begin training. Without `ideal`, each call of `steps` must pass `waited_s`, to estimate the ideal step."""
        self._fit.times.ideal = ideal or IdealStep()
        self._before = list(_ended)
        if self._rank() == 0:
            with self._disk():
                self._output_dir.mkdir(parents=True, exist_ok=True)
                self._metrics = open(self._output_dir / METRICS, "a", encoding="utf-8")  # noqa: SIM115
                self._scalars = self._open_scalars(self._output_dir / TENSORBOARD)
            if ideal:
                say("ideal_step", step_ms=ideal.ms, error_ms=ideal.error_ms)
            # The last report lacks the latest steps, so write one more if the script raises or exits.
            atexit.register(self.write_report)
            failure.last_words.append(self.write_report)
        self._train_begin = time.perf_counter()

    def progress(self) -> None:
        """Show the launcher that this rank makes progress, although it makes no training step, as in an evaluation."""
        self._signals.progress()

    def steps(
        self,
        made: int,
        took_s: float,
        waited_s: float | None = None,
        waited_cpu_s: float | None = None,
        between_s: float = 0.0,
        copied_s: float | None = None,
    ) -> None:
        """Count steps that were made.

        Args:
            made: number of the steps.
            took_s: seconds of all these steps together.
            waited_s: the part of `took_s` spent waiting for batches; None: not known.
            waited_cpu_s: CPU seconds of this process in `waited_s`; None if the process does other work meanwhile.
            between_s: the part of `took_s` in the script's callbacks before the step. Callbacks do not wait for data.
            copied_s: the part of `waited_s` spent waiting for the copy to the GPU; None: not known.
        """
        self._fit.times.made(Sums(made, took_s, waited_s, between_s, copied_s))
        self._fit.cpu.made(made, waited_cpu_s or 0.0)
        self._fit.knows_waited_cpu |= waited_cpu_s is not None
        before, self._fit.steps = self._fit.steps, self._fit.steps + made
        self._signals.step()
        if self._rank() == 0:
            if not before:
                total = self._step_of_run() - made + self._total_steps
                say("first_step", **({"total_steps": total} if self._total_steps else {}))
            if self._fit.steps // self._log_every != before // self._log_every:
                self._write_step()
            if time.monotonic() >= self._next_report:
                self._next_report = time.monotonic() + REPORT_INTERVAL_S
                self.write_report()

    def steps_over(self) -> None:
        """Count no CPU time or GPU utilization until the next step, for example in an evaluation or a checkpoint."""
        self._fit.cpu.over()
        self._signals.steps_over()

    def epoch(self, number: int, metrics: dict[str, float]) -> None:
        """Record the end of epoch `number`, counted from 1, and the epoch's metrics."""
        self.steps_over()
        self._fit.epochs += 1
        self._fit.longest_epoch = max(self._fit.longest_epoch, self._fit.steps - self._epoch_began)
        self._epoch_began = self._fit.steps
        self._final_metrics = metrics
        if self._rank() == 0:
            values = " ".join(f"{name}={value:.4g}" for name, value in metrics.items())
            print(f"epoch {number}: {values}", flush=True)
            self._write({"epoch": number, **metrics})
            self.write_report()

    def end(self) -> None:
        """End training. If the script begins another training, that one continues the step count."""
        self._signals.ended()
        atexit.unregister(self.write_report)
        if self.write_report in failure.last_words:
            failure.last_words.remove(self.write_report)
        if self._rank() == 0:
            self.write_report()
            for stream in (self._metrics, self._scalars):
                if stream:
                    with self._disk():
                        stream.close()
        _ended.append(self._fit)
        self._fit, self._total_steps, self._epoch_began = Fit(), 0, 0

    def write_report(self) -> None:
        """Write the trainer's part of `summary.json`, as it is now."""
        self._fit.train_s = time.perf_counter() - self._train_begin
        made = together([*self._before, self._fit])
        report = {
            "world_size": self._size(),
            "global_batch_size": self._batch_size * self._size(),
            **made,
            "samples_per_s": round(self._samples_per_s(made["step_time_ms"]["mean"]), 3),
            "sample_bytes": round(self._sample_bytes(), 3),
            "final_metrics": {name: _finite(value) for name, value in self._final_metrics.items()},
        }
        with self._disk():
            write_json(self._output_dir / TRAINER_REPORT, report)

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        """Context that prints a disk error and does not raise it: a full disk loses figures, but training goes on."""
        try:
            yield
        except OSError as error:
            if not self._disk_failed:
                print(f"figures are lost, but training is not stopped: {error}", flush=True)
            self._disk_failed = True

    def _write_step(self) -> None:
        times = self._fit.times
        recent = times.take_recent()
        step_ms, share, ideal_ms = recent.mean_ms(), times.input_bound_share(recent), times.ideal_ms(recent)
        samples_per_s = self._samples_per_s(step_ms)
        say("step", step=self._step_of_run(), step_ms=step_ms, samples_per_s=samples_per_s, input_bound=share)
        figures = {"step_time_ms": step_ms, "samples_per_s": samples_per_s}
        self._write({**figures, "input_bound_share": share, "ideal_step_time_ms": ideal_ms})

    def _samples_per_s(self, step_ms: float) -> float:
        return self._batch_size * self._size() * 1000 / step_ms if step_ms else 0.0

    def _step_of_run(self) -> int:
        return self._fit.steps + sum(fit.steps for fit in self._before)

    def _write(self, values: dict[str, float]) -> None:
        if self._metrics:
            with self._disk():
                record = {name: _finite(value) for name, value in values.items()}
                self._metrics.write(json.dumps({**record, "time": time.time(), "step": self._step_of_run()}) + "\n")
                self._metrics.flush()
        if self._scalars:
            with self._disk():
                self._scalars.write(self._step_of_run(), values)


def _finite(value: float) -> float | None:
    """Return None for infinity and NaN, which JSON cannot express."""
    return value if math.isfinite(value) else None
