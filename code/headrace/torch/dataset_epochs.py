"""Epochs of datasets that have a `set_epoch`: told to them wherever samples are made, or set by the script."""

from __future__ import annotations

import collections
import inspect
import itertools
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset

from headrace.torch import epoch_state
from headrace.torch.dataset_code import held_by
from headrace.torch.epoch_calls import Told, of_ours, told_to
from headrace.torch.fetch.rng import own_draws, seed_all
from headrace.torch.own_generators import Held, generators_held, kept
from headrace.torch.sampling.epoch_plan import sample_seed

MOST_WITHIN = 10_000
"""Datasets within a dataset, and entries of a list in which they are looked for."""
_EPOCH = 1 << 46
"""A place that no sample has: the draws of `set_epoch`."""
_epochs: dict[int, Any] = {}
"""What each dataset of this process was told last, by its id: loaders keep theirs alive."""
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
    """Whether it has a `set_epoch` of an epoch and nothing else; of its own, and not that of one that it hands on."""
    set_epoch = getattr(dataset, "set_epoch", None)
    if not callable(set_epoch) or getattr(set_epoch, "__self__", dataset) is not dataset:
        return False
    try:
        inspect.signature(set_epoch).bind(0)
    except (TypeError, ValueError):
        return False
    return True


def told_within(dataset: Any) -> list[Any]:
    """Those of a dataset and of all within it that are told epochs, in an order that is the same everywhere."""
    return [each for each in datasets_within(dataset) if takes_epoch(each)]


def told_by_script(dataset: Any) -> list[Told]:
    """What the script told each of `told_within`; empty where it told none of them anything."""
    told = [told_to(each) for each in told_within(dataset)]
    return told if any(told) else []


def tell_epoch(datasets: Sequence[Any], seed: int, epoch: int, told: Sequence[Told] = ()) -> bool:
    """Tell them that this epoch begins, or what the script told them; whether one did not know.

    Then all are told, those within others last: who is told may tell others something else.
    """
    words = [word for _, word in itertools.zip_longest(datasets, told[: len(datasets)])]
    values = [word[0] if word else epoch for word in words]
    if all(id(each) in _epochs and _epochs[id(each)] == value for each, value in zip(datasets, values, strict=True)):
        return False
    for each in datasets:
        epoch_state.put_back(each)
    for each, value, word in zip(datasets, values, words, strict=True):
        _epochs[id(each)] = value
        begin_epoch(each, seed, epoch, word, generators_held(each))
    for each in datasets:
        epoch_state.keep(each)
    return True


def forget_epochs() -> None:
    """All datasets of this process are told their epoch anew when they make the next sample."""
    _epochs.clear()


def begin_epoch(dataset: Any, seed: int, epoch: int, told: Told = None, own: Held | None = None) -> None:
    """Tell it even where it knows. What `set_epoch` draws, of its `own` generators too, is the same everywhere."""
    value = told[0] if told else epoch
    number = value if type(value) is int else zlib.crc32(repr(value).encode())
    with own_draws(), kept(own or {}), of_ours():
        seed_all(sample_seed(seed, number, 0, _EPOCH), own)
        dataset.set_epoch(value)


def epoch_set_by_script(dataset: Any) -> int | None:
    """The epoch that a dataset, or one inside it, holds and was not told by a `Maker`; None where it holds none."""
    for each in told_within(dataset):
        held = _epoch_held(each)
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
