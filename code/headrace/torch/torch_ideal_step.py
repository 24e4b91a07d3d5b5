"""The ideal step of a custom training loop: the script's step on a batch that is already on the device."""

from __future__ import annotations

import contextlib
import copy
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from headrace.torch import distributed
from headrace.torch.fetch.pin_memory import arrays_of, to_device
from headrace.torch.fetch.rng import GLOBAL, kept
from headrace.training.ideal_step import SETTLING, IdealStep, steps_to_measure

WARM_UP_STEPS = 2
"""Number of warm-up steps, in which PyTorch chooses kernels and compiles."""


def measure_ideal_step(
    step: Callable[[Any], Any], batch: Any, model: torch.nn.Module, optimizer: Any, others: Sequence[Any]
) -> tuple[IdealStep, float]:
    """Return the ideal step, and the seconds to copy a batch to the GPU. All ranks must call this together.

    A step lasts from the previous step's end to its own end. A GPU records these times, so Python need not wait for it.
    """
    device = distributed.device()
    on_device, copy_s = to_device(batch, device), _copy_s(batch, device)
    with _put_back(model, optimizer, others):
        model.train()
        _times_s(step, on_device, WARM_UP_STEPS, device)
        began_cpu_s, times_s = time.process_time(), _times_s(step, on_device, 2, device)
        count = int(distributed.from_rank_0(str(steps_to_measure(min(times_s))).encode()))
        if settling := int(count * SETTLING):
            _times_s(step, on_device, settling, device)
            began_cpu_s, times_s = time.process_time(), []
        times_s += _times_s(step, on_device, count - len(times_s), device)
        cpu_s = time.process_time() - began_cpu_s
    return IdealStep.of(times_s, cpu_s), copy_s


def _copy_s(batch: Any, device: torch.device) -> float:
    """Return the seconds to copy the batch's bytes from pinned memory to the GPU; 0 if it is there already."""
    on_host = [each for each in arrays_of(batch) if isinstance(each, torch.Tensor) and each.device.type == "cpu"]
    if device.type != "cuda" or not on_host:
        return 0.0
    source = torch.empty(sum(each.nbytes for each in on_host), dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(source, device=device)
    return _times_s(lambda _: target.copy_(source, non_blocking=True), batch, 2, device)[-1]  # the first one warms up


def _times_s(step: Callable[[Any], Any], batch: Any, count: int, device: torch.device) -> list[float]:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    moments = distributed.Moments(device)
    marks = [moments.now()]
    for _ in range(count):
        step(batch)
        marks.append(moments.now())
    return [moments.between_s(before, after) for before, after in itertools.pairwise(marks)]


@contextlib.contextmanager
def _put_back(model: torch.nn.Module, optimizer: Any, others: Sequence[Any]) -> Iterator[None]:
    """Context that restores, to the last bit, all that a step changes: the model, optimizer and random generators.

    Copies stay in the host's memory, since a second model may not fit on the GPU. Tensors keep their addresses.

    Args:
        others: other objects that a step changes; each has `state_dict` and `load_state_dict`.
    """
    modules = list(model.modules())
    holders = [each for module in modules for each in (module._parameters, module._buffers)]
    holders += [optimizer.state, *optimizer.param_groups]
    gradients = [(each, each.grad) for each in model.parameters()]
    tensors = {id(each): each for each in arrays_of([holders, gradients]) if isinstance(each, torch.Tensor)}
    values = [(each, each.detach().to("cpu", copy=True)) for each in tensors.values()]
    copies = copy.deepcopy(holders, dict(tensors))  # new containers of the same tensors
    training = [(each, each.training) for each in modules]
    states = [(each, copy.deepcopy(each.state_dict())) for each in others]
    with kept((*GLOBAL, *torch.cuda.default_generators)):
        try:
            yield
        finally:
            for holder, copied in zip(holders, copies, strict=True):
                holder.clear()
                holder.update(copied)
            with torch.no_grad():
                for tensor, value in values:
                    tensor.copy_(value)
            for parameter, gradient in gradients:
                parameter.grad = gradient
            for module, was_training in training:
                module.training = was_training
            for each, state in states:
                each.load_state_dict(state)
