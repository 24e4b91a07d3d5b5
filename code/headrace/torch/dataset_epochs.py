"""Epochs of datasets that have a `set_epoch`: told to them wherever samples are made, or set by the script."""

from __future__ import annotations

import collections
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset

from headrace.torch import epoch_state
from headrace.torch.dataset_code import held_by
from headrace.torch.draws import own_draws, seed_all
from headrace.torch.order import sample_seed
from headrace.torch.own_generators import Held, generators_held, kept

MOST_WITHIN = 10_000
"""Datasets within a dataset, and entries of a list in which they are looked for."""
_EPOCH = 1 << 46
"""A place that no sample has: the draws of `set_epoch`."""
_epochs: dict[int, int] = {}
"""The epoch that each dataset of this process was told last, by its id: loaders keep theirs alive."""
_epochs_of_script: dict[int, int] = {}


def datasets_within(dataset: Any) -> list[Any]:
    """A dataset, and those that its attributes hold, also in lists, tuples and dicts."""
    found: dict[int, Any] = {}
    waiting = collections.deque([dataset])
    while waiting and len(found) < MOST_WITHIN:
        each = waiting.popleft()
        if id(each) not in found:
            found[id(each)] = each
            waiting += [inside for inside in _held_by(each) if isinstance(inside, Dataset)]
    return list(found.values())


def _held_by(dataset: Any) -> Iterator[Any]:
    for value in held_by(dataset).values():
        if isinstance(value, (list, tuple, dict)) and len(value) <= MOST_WITHIN:
            yield from value.values() if isinstance(value, dict) else value
        else:
            yield value


def takes_epoch(dataset: Any) -> bool:
    """Whether it has a `set_epoch` of an epoch and nothing else."""
    set_epoch = getattr(dataset, "set_epoch", None)
    if not callable(set_epoch):
        return False
    try:
        inspect.signature(set_epoch).bind(0)
    except (TypeError, ValueError):
        return False
    return True


def tell_epoch(dataset: Any, seed: int, epoch: int) -> bool:
    """Tell it that this epoch begins; whether it did not know."""
    if _epochs.get(id(dataset)) == epoch:
        return False
    _epochs[id(dataset)] = epoch
    epoch_state.put_back(dataset)
    begin_epoch(dataset, seed, epoch, generators_held(dataset))
    epoch_state.keep(dataset)
    return True


def forget_epochs() -> None:
    """All datasets of this process are told their epoch anew when they make the next sample."""
    _epochs.clear()


def begin_epoch(dataset: Any, seed: int, epoch: int, own: Held | None = None) -> None:
    """Tell it even where it knows. What `set_epoch` draws, of its `own` generators too, is the same everywhere."""
    with own_draws(), kept(own or {}):
        seed_all(sample_seed(seed, epoch, 0, _EPOCH), own)
        dataset.set_epoch(epoch)


def epoch_set_by_script(dataset: Any) -> int | None:
    """The epoch that a dataset, or one inside it, holds and was not told by a `Maker`; None where it holds none."""
    for each in datasets_within(dataset):
        held = _epoch_held(each) if takes_epoch(each) else None
        if held is not None:
            if held != _epochs.get(id(each)):
                _epochs_of_script[id(each)] = held
            return _epochs_of_script.get(id(each))
    return None


def _epoch_held(dataset: Any) -> int | None:
    """Under the names that people give it; Hugging Face keeps it in a tensor."""
    for name in ("epoch", "_epoch", "current_epoch"):
        value = getattr(dataset, name, None)
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            value = int(value)
        if type(value) is int:
            return value
    return None
