"""What a script gives a loader: refused where it makes no sense, and torch's own batches of a DistributedSampler."""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler

from headrace.errors import InputError
from headrace.torch.fetch import ON_ERROR
from headrace.torch.sampling import is_distributed


def check(is_stream: bool, on_error: str, shards: int) -> None:
    """Of the arguments that torch does not have. Raises `InputError`."""
    if on_error not in ON_ERROR:
        raise InputError(f"on_error is {on_error!r}; expected one of {', '.join(ON_ERROR)}")
    if shards and not is_stream:
        raise InputError("shards is for an IterableDataset; a map-style dataset needs none")
    if is_stream and on_error == "skip":
        raise InputError("on_error='skip' needs a map-style dataset: an iterator that has raised is over")


def how_batches_are_made(batch_size: int | None, sampler: Any, batch_sampler: Any, drop_last: bool) -> tuple[Any, ...]:
    """These as torch's DataLoader has them; `BatchSampler(DistributedSampler(…), …)` as its sampler and its size.

    It deals samples to ranks and makes batches of one rank's, as the loader does with the sampler. Where the script
    gave another of these too, nothing is changed, and torch says that they exclude each other.
    """
    theirs = type(batch_sampler) is BatchSampler and is_distributed(batch_sampler.sampler)
    if theirs and (batch_size, sampler, drop_last) == (1, None, False):
        batch_size, sampler, drop_last = batch_sampler.batch_size, batch_sampler.sampler, batch_sampler.drop_last
        batch_sampler = None
    return batch_size, sampler, batch_sampler, drop_last
