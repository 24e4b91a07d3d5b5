"""A plain training loop, with the measurements, progress and checkpoints that a job needs."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from headrace.errors import InputError
from headrace.events import say
from headrace.torch import distributed as world
from headrace.torch import registry
from headrace.torch.checkpoint import Checkpoint
from headrace.torch.wait_times import GpuWaiting, Waiting
from headrace.training.meter import Meter


class Training:
    """Around a loop over epochs and batches; every rank makes the same steps.

        training = headrace.torch.Training(model, optimizer, loader, checkpoint=headrace.torch.Checkpoint())
        for epoch in training.epochs(5):
            for x, y in training.steps():
                loss = …          # to the device, forward, backward, optimizer.step()
            training.end_epoch(loss=loss)

    DistributedDataParallel has all ranks begin with rank 0's weights; a checkpoint's reach all of them. `end_epoch`
    averages what it is given over the ranks. The input-bound share is the time that `steps` waits for a batch, and the
    ideal step time is the rest.

    Args:
        model: what is trained, in DistributedDataParallel or bare.
        optimizer: its state is kept too.
        loader: what is trained on.
        log_every: steps between two log events.
        checkpoint: keeps each epoch, and says where to go on; None: nothing is kept.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, loader: Any,
                 log_every: int = 10, checkpoint: Checkpoint | None = None) -> None:  # fmt: skip
        self._model, self._optimizer, self._loader = model, optimizer, loader
        self._checkpoint = checkpoint
        self._sample_bytes = 0.0
        self._batches = self._samples = 0
        self._meter = Meter(world.rank, world.world_size, loader.batch_size or 1, log_every, open_scalars,
                            lambda: self._sample_bytes)  # fmt: skip
        self._epoch = self._epochs = 0
        self._told_that_shorter = False

    def epochs(self, epochs: int) -> Iterator[int]:
        """The epochs that are still to be trained, counted from 0."""
        registry.batch_asked_for()
        first = self._checkpoint.restore(self._model, self._optimizer, self._loader) if self._checkpoint else 0
        self._epochs = epochs
        self._meter.begin()
        try:
            for self._epoch in range(first, epochs):
                self._loader.set_epoch(self._epoch)
                yield self._epoch
        finally:  # also where the script breaks the loop
            self._meter.end()

    def steps(self, most: int | None = None) -> Iterator[Any]:
        """The batches of an epoch, or of what is left of it.

        Args:
            most: steps of an epoch, those made before a resume included; None or 0: the whole loader.

        Raises:
            InputError: there is none.
        """
        self._model.train()
        waiting = GpuWaiting() if world.device().type == "cuda" else Waiting()
        begun_at = self._loader.state_dict()["position"]
        steps, asked_at, asked_cpu_s = 0, time.perf_counter(), time.process_time()
        self._expect(most)
        made_before = begun_at // ((self._loader.batch_size or 1) * world.world_size())
        self._meter.resumes(made_before)
        if most:
            most -= made_before
            if most <= 0:
                return
        try:
            for batch in self._loader:
                waiting.batch_is_here()
                # With feed servers, threads of this process receive during steps too: then it would tell nothing.
                waited_cpu_s = None if self._loader.made_elsewhere else time.process_time() - asked_cpu_s
                self._look_at(batch)
                yield batch
                waited_s = waiting.step_is_over()
                now = time.perf_counter()
                self._meter.steps(1, now - asked_at, waited_s, waited_cpu_s)
                steps, asked_at, asked_cpu_s = steps + 1, now, time.process_time()
                if self._checkpoint:
                    self._checkpoint.step_made(self._model, self._optimizer, self._loader)
                if most and steps >= most:
                    break
        finally:  # also where the script breaks out of its loop
            self._meter.steps_over()
        if most and steps < most and world.rank() == 0 and not self._told_that_shorter:
            self._told_that_shorter = True
            say("short_epoch", steps=made_before + steps, asked_for=made_before + most)
        if not steps and begun_at == 0:
            raise InputError(
                "the loader gives no batch: with drop_last a step needs batch_size samples for each rank; give more "
                "samples or smaller batches"
            )

    def _look_at(self, batch: Any) -> None:
        """What a batch holds. A batch sampler's are counted, since the loader does not know how large they are."""
        if not self._loader.batch_size:
            self._batches, self._samples = self._batches + 1, self._samples + (samples_of(batch) or 1)
            self._meter.batches_hold(self._samples / self._batches)
        if not self._sample_bytes:
            self._sample_bytes = batch_bytes(batch) / (self._loader.batch_size or samples_of(batch) or 1)

    def _expect(self, most: int | None) -> None:
        """Tell how many steps are to come, as far as that is known; a script's sampler may be longer than it says."""
        with contextlib.suppress(TypeError):  # an iterable dataset has no length
            there = len(self._loader)
            most = most if most and self._loader.samples.drawn_by_the_scripts else min(most or there, there)
        if most:
            self._meter.expect((self._epochs - self._epoch) * most)

    def progress(self) -> None:
        """Something was done that is no step: a batch of an evaluation, for one."""
        self._meter.progress()

    def end_epoch(self, **metrics: Any) -> dict[str, float]:
        """Ends the epoch, even an unfinished one; returns its metrics, averaged over the ranks."""
        averaged = average(metrics)
        self._meter.epoch(self._epoch + 1, averaged)
        if self._checkpoint:
            place = {**self._loader.state_dict(), "epoch": self._epoch + 1, "position": 0}
            self._checkpoint.save(self._model, self._optimizer, place)
        return averaged


def samples_of(batch: Any) -> int:
    """The first dimension of the first tensor or array in a batch; 0 where one does not say."""
    try:
        return _first_dimension(batch)
    except Exception:  # a nested tensor, or anything of the user's own: it is only a figure
        return 0


def batch_bytes(batch: Any) -> int:
    """Bytes of all tensors and arrays in a batch, however it nests them; 0 where one does not say."""
    try:
        return _nested_bytes(batch)
    except Exception:  # a sparse tensor, or anything of the user's own: it is only a figure
        return 0


def _first_dimension(batch: Any) -> int:
    if getattr(batch, "shape", ()):
        return int(batch.shape[0])
    return next((found for each in _parts_of(batch) if (found := _first_dimension(each))), 0)


def _nested_bytes(batch: Any) -> int:
    if hasattr(batch, "nbytes"):
        return int(batch.nbytes)
    return sum(_nested_bytes(each) for each in _parts_of(batch))


def _parts_of(batch: Any) -> Iterable[Any]:
    if dataclasses.is_dataclass(batch):
        return [getattr(batch, each.name) for each in dataclasses.fields(batch)]
    return batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (list, tuple)) else ()


def average(metrics: dict[str, Any]) -> dict[str, float]:
    """Each number's mean over the ranks; all ranks must call it with the same names."""
    if not metrics:
        return {}
    values = torch.tensor([float(value) for value in metrics.values()], dtype=torch.float64)
    if world.world_size() > 1:
        there = values.to(world.device())
        torch.distributed.all_reduce(there)
        values = there.cpu() / world.world_size()
    return dict(zip(metrics, values.tolist(), strict=True))


class _Scalars:
    """TensorBoard's files, in a folder."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def write(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _NoScalars:
    """Where TensorBoard is not installed."""

    def write(self, step: int, values: dict[str, float]) -> None:
        pass

    def close(self) -> None:
        pass


def open_scalars(folder: Path) -> _Scalars | _NoScalars:
    """TensorBoard's files, where its package is there to write them."""
    try:
        return _Scalars(folder)
    except ImportError:
        return _NoScalars()
