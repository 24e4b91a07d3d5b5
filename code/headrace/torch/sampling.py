"""Which samples make up an epoch: torch's samplers, evaluated so that all ranks get the same answer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler

from headrace.errors import InputError
from headrace.torch.fetch import own_draws, seed_all
from headrace.torch.order import sample_seed

_DRAWS = 1 << 41
"""A place that no sample has: a sampler's draws."""


def epoch_indices(sampler: Any, given: bool, dataset: Any, seed: int, epoch: int) -> Sequence[Any]:
    """What the positions of an epoch stand for: indices of samples, or lists of them.

    Args:
        sampler: a sampler, or a batch sampler.
        given: by the script; else it stands for `shuffle`.

    Raises:
        InputError: the sampler does not say how many there are, or yields what cannot be an index.
    """
    if not given and isinstance(sampler, SequentialSampler):
        return range(len(dataset))
    if (not given and isinstance(sampler, RandomSampler)) or isinstance(sampler, DistributedSampler):
        if isinstance(sampler, DistributedSampler) and not sampler.shuffle:
            return range(len(dataset))
        # As DistributedSampler does, so that its users keep their order.
        first = sampler.seed if isinstance(sampler, DistributedSampler) else seed
        generator = torch.Generator().manual_seed(first + epoch)
        order: Sequence[int] = torch.randperm(len(dataset), generator=generator).numpy()
        return order
    try:
        count = len(sampler)
    except TypeError as error:
        raise InputError(
            f"{type(sampler).__name__} does not say how many samples an epoch has: give it a __len__"
        ) from error
    with own_draws():
        drawn_from = sample_seed(seed, epoch, 0, _DRAWS)
        seed_all(drawn_from)
        if isinstance(generator := getattr(sampler, "generator", None), torch.Generator):
            generator.manual_seed(drawn_from)
        drawn = list(itertools.islice(sampler, count))
    for index in itertools.chain.from_iterable(drawn) if drawn and isinstance(drawn[0], (list, tuple)) else drawn:
        if not isinstance(index, (int, str)) and not hasattr(index, "__index__"):
            raise InputError(f"{type(sampler).__name__} yields {index!r:.80}; an index is a number or a text")
    return drawn


def plain_index(index: Any) -> int | str:
    """As JSON has it."""
    return index if isinstance(index, str) else int(index)
