"""The ideal step of a custom training loop: the script's step on one batch that is on the device already."""

from __future__ import annotations

import contextlib
import copy
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from headrace.torch import distributed
from headrace.torch.fetch.pin_memory import arrays_of, to_device
from headrace.training.ideal_step import SETTLING, IdealStep, steps_to_measure

WARM_UP_STEPS = 3
"""Steps before the number to measure is chosen: the first ones choose kernels and compile."""


def measure_ideal_step(
    step: Callable[[Any], Any], batch: Any, model: torch.nn.Module, optimizer: Any, others: Sequence[Any]
) -> tuple[IdealStep, float]:
    """Return the ideal step, and the seconds to copy a batch to the GPU; all ranks must call this together.

    A step's time is from the end of the step before to its own end, as in training: Python may run ahead of the GPU.
    """
    device = distributed.device()
    on_device, copy_s = to_device(batch, device), _copy_s(batch, device)
    with _put_back(model, optimizer, others):
        model.train()
        *_, last_s = _times_s(step, on_device, WARM_UP_STEPS, device)
        count = int(distributed.from_rank_0(str(steps_to_measure(last_s)).encode()))
        _times_s(step, on_device, int(count * SETTLING), device)
        cpu_s = time.process_time()
        times_s = _times_s(step, on_device, count, device)
        cpu_s = time.process_time() - cpu_s
    return IdealStep.of(times_s, cpu_s), copy_s


def _copy_s(batch: Any, device: torch.device) -> float:
    """Return the seconds to copy the batch's bytes from pinned memory to the GPU; 0 if it is there already."""
    on_host = [each for each in arrays_of(batch) if isinstance(each, torch.Tensor) and each.device.type == "cpu"]
    if device.type != "cuda" or not on_host:
        return 0.0
    source = torch.empty(sum(each.nbytes for each in on_host), dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(source, device=device)
    marks = _Marks(device)
    for _ in range(2):  # the first one warms up
        target.copy_(source, non_blocking=True)
        marks.add()
    return marks.between_s()[-1]


def _times_s(step: Callable[[Any], Any], batch: Any, count: int, device: torch.device) -> list[float]:
    marks = _Marks(device)
    for _ in range(count):
        step(batch)
        marks.add()
    return marks.between_s()


class _Marks:
    """Moments on the device. A GPU notes them in its queue, without a wait."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._marks: list[Any] = []
        if self._on_gpu:
            torch.cuda.synchronize(device)
        self.add()

    def add(self) -> None:
        """Note a moment."""
        if self._on_gpu:
            self._marks.append(torch.cuda.Event(enable_timing=True))
            self._marks[-1].record()
        else:
            self._marks.append(time.perf_counter())

    def between_s(self) -> list[float]:
        """Return the seconds from each moment to the next."""
        if not self._on_gpu:
            return [after - before for before, after in itertools.pairwise(self._marks)]
        self._marks[-1].synchronize()
        return [before.elapsed_time(after) / 1000 for before, after in itertools.pairwise(self._marks)]


@contextlib.contextmanager
def _put_back(model: torch.nn.Module, optimizer: Any, others: Sequence[Any]) -> Iterator[None]:
    """Put back, to the last bit, all that a step changes: weights, buffers, gradients, optimizer, random generators.

    Copies stay in the host's memory, since a second model may not fit on the GPU. Tensors keep their addresses.

    Args:
        others: other objects that a step changes; each has `state_dict` and `load_state_dict`.
    """
    keep = _Keep()
    modules = list(model.modules())
    back = [keep(held) for each in modules for held in (each._parameters, each._buffers)]
    back += [keep(each) for each in (optimizer.state, optimizer.param_groups)]
    gradients = [(each, keep(each.grad)) for each in model.parameters()]
    training = [(each, each.training) for each in modules]
    states = [(each, copy.deepcopy(each.state_dict())) for each in others]
    of_python, of_numpy, of_torch = random.getstate(), np.random.get_state(), torch.get_rng_state()
    of_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        for put_back in back:
            put_back()
        for parameter, gradient in gradients:
            parameter.grad = gradient()
        for module, was_training in training:
            module.training = was_training
        for each, state in states:
            each.load_state_dict(state)
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        torch.set_rng_state(of_torch)
        if of_gpus:
            torch.cuda.set_rng_state_all(of_gpus)


class _Keep:
    """Copies values. A call returns a function that restores the value; tensors that values share are copied once."""

    def __init__(self) -> None:
        self._tensors: dict[int, Callable[[], Any]] = {}

    def __call__(self, value: Any) -> Callable[[], Any]:
        if isinstance(value, torch.Tensor):
            if id(value) not in self._tensors:
                self._tensors[id(value)] = _refill(value)
            return self._tensors[id(value)]
        if isinstance(value, dict):
            entries = {key: self(each) for key, each in value.items()}
            return lambda: _with_entries(value, entries)
        if isinstance(value, list):
            elements = [self(each) for each in value]
            return lambda: _with_elements(value, elements)
        kept = copy.deepcopy(value)
        return lambda: kept


def _refill(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    kept = tensor.detach().to("cpu", copy=True)

    def put_back() -> torch.Tensor:
        with torch.no_grad():
            tensor.copy_(kept)
        return tensor

    return put_back


def _with_entries(value: dict[Any, Any], entries: dict[Any, Callable[[], Any]]) -> dict[Any, Any]:
    value.clear()
    value.update({key: put_back() for key, put_back in entries.items()})
    return value


def _with_elements(value: list[Any], elements: list[Callable[[], Any]]) -> list[Any]:
    value[:] = [put_back() for put_back in elements]
    return value
