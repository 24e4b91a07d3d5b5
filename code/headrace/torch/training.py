"""Plain training loops with the measurements, progress and checkpoints that a job needs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from headrace.errors import InputError
from headrace.events import say
from headrace.torch import distributed
from headrace.torch.checkpoint import Checkpoint
from headrace.torch.feed import script
from headrace.torch.fetch.pin_memory import arrays_of
from headrace.torch.torch_ideal_step import measure_ideal_step
from headrace.training.ideal_step import IdealStep
from headrace.training.meter import Meter


class Training:
    """A loop over epochs and batches; every rank makes the same steps.

        training = headrace.torch.Training(model, optimizer, loader, checkpoint=headrace.torch.Checkpoint())
        for epoch in training.epochs(5):
            for x, y in training.steps():
                loss = …          # to the device, forward, backward, optimizer.step()
            training.end_epoch(loss=loss)

    With DistributedDataParallel all ranks begin with rank 0's weights. A checkpoint is loaded on all ranks. `end_epoch`
    averages metrics over the ranks. Call `measure_ideal_step` before the loop to measure the time of a step that waits
    for nothing. Without this call, the ideal step time is an estimate: the step time less the wait for batches.

    Args:
        model: the model to train, bare or wrapped by DistributedDataParallel or torch.compile.
        optimizer: the model's optimizer; checkpoints hold its state too.
        loader: a `headrace.torch.DataLoader`.
        log_every: steps between two log events.
        checkpoint: keeps a checkpoint of each epoch, and resumes from the newest one; None: there are no checkpoints.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: Any,
        log_every: int = 10,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self._model, self._optimizer, self._loader = model, optimizer, loader
        self._checkpoint = checkpoint
        self._sample_bytes = 0.0
        self._batches = self._samples = 0
        ranks, batch_size = (distributed.rank, distributed.world_size), loader.batch_size or 1
        self._meter = Meter(*ranks, batch_size, log_every, _Scalars, lambda: self._sample_bytes)
        self._epoch = self._epochs = 0
        self._said_that_shorter = False
        self._ideal: IdealStep | None = None
        self._copy_s = None if distributed.device().type == "cuda" else 0.0

    def measure_ideal_step(self, step: Callable[[Any], Any], batch: Any, *others: Any) -> None:
        """Measure the time of a step that waits for nothing. All ranks must call this, just before `epochs`.

        It makes a few steps. Then it restores, to the last bit, the model's weights, buffers and gradients, the
        optimizer, and the random generators of Python, NumPy and torch. Time that the loop spends outside `step` counts
        as waiting for data.

        Args:
            step: makes one step on a batch.
            batch: a batch of the loader's shapes and types with made-up numbers; it is put on the device first.
            others: other objects that a step changes, such as a `GradScaler` or a schedule; each has `state_dict` and
                `load_state_dict`.
        """
        script.training_begins()
        self._ideal, self._copy_s = measure_ideal_step(step, batch, self._model, self._optimizer, others)

    def epochs(self, epochs: int) -> Iterator[int]:
        """Yield the epochs that are still to be trained, counted from 0."""
        script.training_begins()
        first = self._checkpoint.restore(self._model, self._optimizer, self._loader) if self._checkpoint else 0
        self._epochs = epochs
        self._meter.begin(self._ideal)
        try:
            for self._epoch in range(first, epochs):
                self._loader.set_epoch(self._epoch)
                yield self._epoch
        finally:  # also where the script breaks the loop
            self._meter.end()

    def steps(self, most: int | None = None) -> Iterator[Any]:
        """Yield the batches of an epoch. After a resume, yield the remaining batches.

        Args:
            most: limit on an epoch's steps. Steps before a resume count, too. None or 0: all batches of the loader.

        Raises:
            InputError: the epoch has no batch.
        """
        self._model.train()
        moments = distributed.Moments(distributed.device())
        begun_at = self._loader.state_dict()["position"]
        steps, asked_at, asked_cpu_s, over = 0, time.perf_counter(), time.process_time(), moments.now()
        self._expect(most)
        made_before = begun_at // ((self._loader.batch_size or 1) * self._loader.ranks)
        self._meter.resumes(made_before)
        if most:
            most -= made_before
            if most <= 0:
                return
        try:
            for batch in self._loader:
                here = moments.now()
                # With feed servers, threads of this process receive during steps too, so its CPU time means nothing.
                waited_cpu_s = None if self._loader.made_elsewhere else time.process_time() - asked_cpu_s
                self._look_at(batch)
                yield batch
                # On a GPU, measure the GPU's wait: Python's wait costs nothing while the GPU still works. Read
                # the GPU's wait only after this step's work is queued: Python is then at most one step ahead.
                waited_s = moments.between_s(over, here)
                over, now = moments.now(), time.perf_counter()
                copied_s = self._loader.last_copy_s()
                if copied_s is None:  # the step itself copies the batch, after the wait for the batch
                    copied_s, waited_s = self._copy_s, waited_s + (self._copy_s or 0.0)
                else:
                    copied_s = min(copied_s, waited_s)
                self._meter.steps(1, now - asked_at, waited_s, waited_cpu_s, copied_s=copied_s)
                steps, asked_at, asked_cpu_s = steps + 1, now, time.process_time()
                if self._checkpoint:
                    self._checkpoint.step_made(self._model, self._optimizer, self._loader)
                if most and steps >= most:
                    break
        finally:  # also where the script breaks out of its loop
            self._meter.steps_over()
        if most and steps < most and distributed.rank() == 0 and not self._said_that_shorter:
            self._said_that_shorter = True
            say("short_epoch", steps=made_before + steps, asked_for=made_before + most)
        if not steps and begun_at == 0:
            raise InputError(
                "the loader gives no batch: with drop_last, a step needs batch_size samples for each rank. Use more "
                "samples or smaller batches"
            )

    def _look_at(self, batch: Any) -> None:
        """Record how many bytes a sample has. If the loader has no `batch_size`, record the mean batch size too."""
        if not self._loader.batch_size:
            self._batches, self._samples = self._batches + 1, self._samples + (samples_of(batch) or 1)
            self._meter.batches_hold(self._samples / self._batches)
        if not self._sample_bytes:
            with contextlib.suppress(Exception):  # unknown for a sparse tensor: the report then lacks the figure
                held = sum(int(each.nbytes) for each in arrays_of(batch))
                self._sample_bytes = held / (self._loader.batch_size or samples_of(batch) or 1)

    def _expect(self, most: int | None) -> None:
        """Tell the `Meter`, which reports progress, how many steps the remaining epochs have, if that is known."""
        with contextlib.suppress(TypeError):  # an iterable dataset may have no length
            length = len(self._loader)
            most = most if most and self._loader.planner.own else min(most or length, length)
        if most:
            self._meter.expect((self._epochs - self._epoch) * most)

    def progress(self) -> None:
        """Tell the launcher that the script makes progress without a step, for example in an evaluation."""
        self._meter.progress()

    def end_epoch(self, **metrics: Any) -> dict[str, float]:
        """End the epoch, even an unfinished one, and return its metrics, averaged over the ranks."""
        averaged = average(metrics)
        self._meter.epoch(self._epoch + 1, averaged)
        if self._checkpoint:
            place = {**self._loader.state_dict(), "epoch": self._epoch + 1, "position": 0}
            self._checkpoint.save(self._model, self._optimizer, place)
        return averaged


def samples_of(batch: Any) -> int:
    """Return the number of samples in a batch: the length of its first tensor or array. Return 0 if this is unknown."""
    with contextlib.suppress(Exception):  # unknown for a nested tensor
        return next((int(each.shape[0]) for each in arrays_of(batch) if len(each.shape)), 0)
    return 0


def average(metrics: dict[str, Any]) -> dict[str, float]:
    """Return each metric's mean over the ranks; all ranks must call this with the same names."""
    if not metrics:
        return {}
    values = torch.tensor([float(value) for value in metrics.values()], dtype=torch.float64)
    if distributed.world_size() > 1:
        on_device = values.to(distributed.device())
        torch.distributed.all_reduce(on_device)
        values = on_device.cpu() / distributed.world_size()
    return dict(zip(metrics, values.tolist(), strict=True))


class _Scalars:
    """TensorBoard's event files in a folder; does nothing where TensorBoard is not installed."""

    def __init__(self, folder: Path) -> None:
        self._writer: Any = None
        with contextlib.suppress(ImportError):
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder))

    def write(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items() if self._writer else ():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        if self._writer:
            self._writer.close()
