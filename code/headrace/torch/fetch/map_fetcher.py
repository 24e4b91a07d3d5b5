"""Make the batches of a map-style dataset: seed the random generators, make each sample, call the collate function.

Feed servers, local worker processes and the rank itself run this code, so their batches are the same to the last bit.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import Subset

from headrace.errors import HeadraceError, InputError
from headrace.torch.fetch.rng import COLLATE, generators_of, kept, sample_seed, seed_all, set_epoch

ON_ERROR = ("raise", "skip")
MOST_SKIPS_LOGGED = 10
Index = int | str | float | tuple[Any, ...] | list[Any]
"""An index that a sampler yields, for `dataset[index]`. A list is for a dataset that reads several samples at once."""
_DEEPEST_INDEX = 3
_TUPLE = "tuple"


class SampleError(HeadraceError):
    """Raised if the dataset raised an error, or took too long, while it made a sample."""


@dataclass(frozen=True)
class BatchRequest:
    """Request for a batch. The batch depends only on the request and the dataset."""

    seed: int
    epoch: int
    positions: Sequence[int]
    """Positions of the samples in the epoch. The seeds of their random numbers are computed from these positions."""
    indices: Sequence[Index]

    def as_json(self) -> dict[str, Any]:
        return vars(self) | {"indices": [_index_as_json(each) for each in self.indices]}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> BatchRequest:
        """Read a request from a message. Raises `InputError` if the message is not a valid request."""
        try:
            return cls(**{**record, "indices": [_index_from_json(each) for each in record["indices"]]})
        except (KeyError, TypeError, RecursionError) as error:
            raise InputError(f"not a request for a batch: {error!r}") from error


class Fetched(NamedTuple):
    """The answer to a request. It is a tuple, since torch can pin the parts of a tuple.

    Attributes:
        batch: the result of the collate function.
        skipped: index and error of each sample that was left out of the batch.
        over: whether the shard has ended; then there is no batch.
        state: the dataset's own `state_dict()` after this batch of a shard; None if it has none.
    """

    batch: Any
    skipped: Sequence[tuple[Any, str]] = ()
    over: bool = False
    state: Any = None


class MapFetcher:
    """Makes batches of one dataset.

    Args:
        collate_fn: makes a batch from a list of samples, or from one sample if `batched` is false.
        on_error: what to do if a sample raises an error. `raise`: end the job. `skip`: leave out the sample.
    """

    def __init__(self, dataset: Any, collate_fn: Callable[[Any], Any], batched: bool, on_error: str) -> None:
        self._dataset, self._collate_fn, self._batched, self._on_error = dataset, collate_fn, batched, on_error
        self._own: dict[str, Any] | None = None
        self.at: Any = None
        """The index of the sample that is being made; None between samples."""

    def fetch(self, request: BatchRequest) -> Fetched:
        """Make a batch. Raises `SampleError`."""
        first = self._own is None
        if set_epoch(self._dataset, request.seed, request.epoch) or self._own is None:
            self._own = generators_of(self._dataset, self._collate_fn)
        with kept(self._own.values()):
            fetched = self._fetch(request, self._own)
        if not first:
            return fetched
        # A dataset may create its generators in its first sample, unseeded: seed them, and make the batch again.
        before, self._own = self._own, generators_of(self._dataset, self._collate_fn)
        if {id(each) for each in self._own.values()} <= {id(each) for each in before.values()}:
            return fetched
        with kept(self._own.values()):
            return self._fetch(request, self._own)

    def _fetch(self, request: BatchRequest, own: dict[str, Any]) -> Fetched:
        skipped: list[tuple[Any, str]] = []
        samples = list(self._samples(request, own, skipped))
        if not samples:
            raise SampleError(f"all {len(skipped)} samples of a batch were skipped: {skipped[0][1]}")
        seed_all(sample_seed(request.seed, request.epoch, request.positions[0], COLLATE), own)
        try:
            batch = self._collate_fn(samples if self._batched else samples[0])
        except Exception as error:
            raise SampleError(describe(error, f"collate_fn for samples {request.indices!s:.100}")) from error
        return Fetched(batch, skipped)

    def _samples(self, request: BatchRequest, own: dict[str, Any], skipped: list[tuple[Any, str]]) -> Iterator[Any]:
        if self._batched and self._on_error == "raise" and _reads_lists(self._dataset):
            seed_all(sample_seed(request.seed, request.epoch, request.positions[0]), own)
            self.at = request.indices[0]
            try:
                yield from self._dataset.__getitems__(list(request.indices))
            except Exception as error:
                raise SampleError(describe(error, f"samples {request.indices!s:.100}")) from error
            finally:
                self.at = None
            return
        one_position = len(set(request.positions)) == 1  # a batch sampler's batch
        for place, (position, index) in enumerate(zip(request.positions, request.indices, strict=True)):
            seed_all(sample_seed(request.seed, request.epoch, position, place if one_position else 0), own)
            self.at = index
            try:
                yield self._dataset[index]
            except Exception as error:
                if self._on_error == "raise":
                    raise SampleError(describe(error, f"sample {index}")) from error
                skipped.append((index, f"{type(error).__name__}: {error}"[:200]))
            finally:
                self.at = None


def plain_index(index: Any, depth: int = 0) -> Index:
    """Convert NumPy and torch numbers in an index to Python numbers. Other types raise TypeError or AttributeError."""
    if isinstance(index, np.generic):
        index = index.item()
    if isinstance(index, (str, bool)) or (isinstance(index, float) and depth):
        return index
    if type(index) in (tuple, list) and depth < _DEEPEST_INDEX:
        parts = [plain_index(each, depth + 1) for each in index]
        return tuple(parts) if isinstance(index, tuple) else parts
    return int(index.__index__())


def describe(error: Exception, what: str) -> str:
    """Return a text whose first line says what raised the error. The traceback follows."""
    return f"{what} raised {type(error).__name__}: {error}\n{traceback.format_exc()}"


def _reads_lists(dataset: Any) -> bool:
    """Return whether the dataset has `__getitems__`. A `Subset` always has it, so look at the dataset inside."""
    innermost = dataset
    while isinstance(innermost, Subset):
        innermost = innermost.dataset
    return all(callable(getattr(each, "__getitems__", None)) for each in (dataset, innermost))


def _index_as_json(index: Index) -> Any:
    """Return a dataset index as JSON values. Tuples are marked, since JSON has only lists."""
    if isinstance(index, (tuple, list)):
        parts = [_index_as_json(each) for each in index]
        return {_TUPLE: parts} if isinstance(index, tuple) else parts
    return index


def _index_from_json(found: Any) -> Any:
    if isinstance(found, dict):
        return tuple(_index_from_json(each) for each in found[_TUPLE])
    return [_index_from_json(each) for each in found] if isinstance(found, list) else found
