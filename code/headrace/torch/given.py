"""What a script gives a loader: refused where it makes no sense; a BatchSampler of a DistributedSampler is undone."""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler

from headrace.errors import InputError
from headrace.torch.fetch.map_fetcher import ON_ERROR
from headrace.torch.sampling.samplers import is_distributed


def check(is_stream: bool, on_error: str, shards: int) -> None:
    """Of the arguments that torch does not have. Raises `InputError`."""
    if on_error not in ON_ERROR:
        raise InputError(f"on_error is {on_error!r}; expected one of {', '.join(ON_ERROR)}")
    if shards and not is_stream:
        raise InputError("shards is for an IterableDataset; a map-style dataset needs none")
    if is_stream and on_error == "skip":
        raise InputError("on_error='skip' needs a map-style dataset: an iterator that has raised is over")


def how_batches_are_made(
    dataset: Any, world: int, batch_size: int | None, shuffle: Any, sampler: Any, batch_sampler: Any, drop_last: bool
) -> tuple[Any, ...]:
    """What torch's DataLoader gets, without `shuffle`: of a BatchSampler of torch's DistributedSampler the latter.

    That deals samples to ranks and makes batches of one rank's, as the loader does with the sampler. Where the script
    gave another of these too, nothing is changed, and torch says that they exclude each other.
    """
    undone = type(batch_sampler) is BatchSampler and is_distributed(batch_sampler.sampler, world, dataset)
    if undone and (batch_size, bool(shuffle), sampler, drop_last) == (1, False, None, False):
        return batch_sampler.batch_size, batch_sampler.sampler, None, batch_sampler.drop_last
    return batch_size, sampler, batch_sampler, drop_last
