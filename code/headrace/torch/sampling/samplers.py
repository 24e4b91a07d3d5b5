"""Which samples make up an epoch: torch's samplers, evaluated so that all ranks get the same answer."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler

from headrace.errors import InputError
from headrace.torch.drawn import drawn_from
from headrace.torch.epoch_calls import of_ours, said_to
from headrace.torch.fetch.rng import Apart, seed_all
from headrace.torch.indices import plain_index
from headrace.torch.sampler_changes import have_drawn, look
from headrace.torch.sampler_sets import refuse_sets
from headrace.torch.sampling.epoch_plan import sample_seed

_DRAWS = 1 << 41
"""A place that no sample has: a sampler's draws."""


def is_distributed(sampler: Any, world: int, dataset: Any) -> bool:
    """Whether this is torch's DistributedSampler, and deals this dataset to all ranks, as headrace does.

    Not a class that changes its order, nor one for a group of ranks or for a part of the dataset.
    """
    known = isinstance(sampler, DistributedSampler) and type(sampler).__iter__ is DistributedSampler.__iter__
    return (
        known and sampler.num_replicas == world and hasattr(dataset, "__len__") and len(sampler.dataset) == len(dataset)
    )


def epoch_of(sampler: Any) -> int | None:
    """The epoch that a sampler, or one inside it, says it is in; None where none has both `epoch` and `set_epoch`."""
    for each in with_those_inside(sampler):
        if callable(getattr(each, "set_epoch", None)) and isinstance(getattr(each, "epoch", None), int):
            return int(each.epoch)
    return None


def check_sampler(sampler: Any, world: int, dataset: Any) -> None:
    """Raises `InputError` for a sampler that deals to the ranks itself: the loader would deal its part once more."""
    for each in () if is_distributed(sampler, world, dataset) else with_those_inside(sampler):
        if (getattr(each, "num_replicas", 1) or 1) > 1:
            raise InputError(
                f"{type(each).__name__} deals samples to {each.num_replicas} ranks, and the loader deals all of its "
                f"dataset to {world}: give it a sampler of the whole dataset, such as RandomSampler, or torch's "
                "DistributedSampler for all ranks, as `sampler`; or shard_by_rank=False, with which a rank takes what "
                "its own says"
            )


def epoch_indices(
    sampler: Any,
    given: bool,
    dealt: bool,
    of_batches: bool,
    dataset: Any,
    seed: int,
    epoch: int,
    moved: Callable[[int | None, int | None], None],
) -> Sequence[Any]:
    """What the positions of an epoch stand for: indices of samples, or lists of them.

    Args:
        sampler: a sampler, or a batch sampler.
        given: by the script; else it stands for `shuffle`.
        dealt: it is torch's DistributedSampler, which deals as the loader does.
        of_batches: it is a batch sampler.
        moved: told of the epochs that a sampler of the script's says it is in, before and after it has drawn.

    Raises:
        InputError: the sampler yields what cannot be an index, or sets something of the dataset with each batch.
    """
    if not given and isinstance(sampler, SequentialSampler):
        return range(len(dataset))
    if (not given and isinstance(sampler, RandomSampler)) or dealt:
        if dealt and not sampler.shuffle:
            return range(len(dataset))
        # As DistributedSampler does, so that its users keep their order.
        first = sampler.seed if dealt else seed
        generator = torch.Generator().manual_seed(first + epoch)
        order: Sequence[int] = torch.randperm(len(dataset), generator=generator).numpy()
        return order
    generators = [each.generator for each in with_those_inside(sampler) if _draws_from_its_own(each)]
    apart = Apart(generators)
    with apart.drawing():
        _seed(sampler, sample_seed(seed, epoch, 0, _DRAWS), epoch)

    samplers = list(with_those_inside(sampler))

    @contextlib.contextmanager
    def aside() -> Iterator[None]:
        before = epoch_of(sampler)
        with apart.drawing(), of_ours():
            yield
        have_drawn(samplers)
        moved(before, epoch_of(sampler))

    no_setting = refuse_sets(samplers, dataset) if of_batches and given else None
    plain = functools.partial(_plain, type(sampler).__name__, of_batches, no_setting)
    look_at_them = functools.partial(look, samplers)
    return drawn_from(sampler, _length(sampler), _length(dataset) or 0, aside, plain, look_at_them)


def _length(of: Any) -> int | None:
    """None where it does not say: a batch sampler may have a length, and its sampler none."""
    try:
        return len(of)
    except (TypeError, NotImplementedError, OverflowError):
        return None


def _plain(sampler: str, of_batches: bool, look: Callable[[], None] | None, drawn: Any) -> tuple[Any, int]:
    """A copy of it, since a sampler may fill one list again and again, and how many samples it is.

    Args:
        look: called where something is drawn.

    Raises:
        InputError: a sampler cannot yield that.
    """
    if look:
        look()
    if type(drawn) is int and not of_batches:
        return drawn, 1
    if of_batches and not len(drawn):
        raise InputError(f"{sampler} yields a batch without samples")
    copies = []
    for index in drawn if of_batches else [drawn]:
        try:
            copies.append(plain_index(index))
        except (TypeError, AttributeError):
            raise InputError(
                f"{sampler} yields {index!r:.80}; an index is a number or a text, or a plain tuple or list of them"
            ) from None
    return (copies, len(copies)) if of_batches else (copies[0], 1)


def _seed(sampler: Any, seed: int, epoch: int) -> None:
    """All that the sampler draws from begins anew."""
    seed_all(seed)
    for each in with_those_inside(sampler):
        if _draws_from_its_own(each):
            each.generator.manual_seed(seed)
        if callable(set_epoch := getattr(each, "set_epoch", None)) and not said_to(each):
            with of_ours():
                set_epoch(epoch)


def _draws_from_its_own(sampler: Any) -> bool:
    return isinstance(getattr(sampler, "generator", None), torch.Generator)


def with_those_inside(sampler: Any, depth: int = 0) -> Iterator[Any]:
    """A sampler, and those that it takes its samples from."""
    if sampler is not None and depth < 5:
        yield sampler
        for name in ("sampler", "batch_sampler"):
            yield from with_those_inside(getattr(sampler, name, None), depth + 1)
