"""Makes one batch: the dataset's samples, each with random draws of its own, then the collate function.

The same code runs in a feed server's processes and in local mode, so that both make the same batches to the last bit.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Subset

from headrace.errors import HeadraceError, InputError
from headrace.events import say
from headrace.torch import distributed as world
from headrace.torch.dataset_epochs import tell_epoch, told_within
from headrace.torch.epoch_calls import Told
from headrace.torch.fetch.rng import seed_all
from headrace.torch.indices import index_as_json, index_of_json
from headrace.torch.own_generators import Held, generators_held, kept
from headrace.torch.sampling.epoch_plan import sample_seed

ON_ERROR = ("raise", "skip")
MOST_SKIPS_TOLD = 10
MOST_PARTS, MOST_SAMPLES = 1 << 16, 1 << 32
"""Of an epoch of an `IterableDataset`, and of a batch of it."""
_COLLATE = 1 << 40
"""A place that no sample of a batch has: the collate function's draws."""


class SampleError(HeadraceError):
    """The dataset has raised, or has taken too long, while it made a sample."""


@dataclass(frozen=True)
class Order:
    """What a batch is to be made of. All there is to say of it: the answer is a function of this and the dataset."""

    seed: int
    epoch: int
    positions: Sequence[int]
    """In the epoch: where random draws come from."""
    indices: Sequence[Any]
    """What the dataset is asked for: `Index`."""
    told: Sequence[Told] = ()
    """What the script told the dataset, and those within it, by `set_epoch`."""

    def as_json(self) -> dict[str, Any]:
        return vars(self) | {"indices": [index_as_json(each) for each in self.indices]}


@dataclass(frozen=True)
class StreamOrder:
    """The `number`-th batch of one of the `parts` of an `IterableDataset`'s epoch; a function of the dataset too."""

    seed: int
    epoch: int
    part: int
    parts: int
    number: int
    batch_size: int
    """Samples; 0: each is a batch."""
    drop_last: bool
    told: Sequence[Told] = ()

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class Made:
    """A batch, and the samples that it lacks: index and error."""

    batch: Any
    skipped: Sequence[tuple[Any, str]] = ()
    over: bool = False
    """There is no batch: the part has ended."""


class Maker:
    """Makes batches of one dataset.

    Args:
        collate_fn: makes a batch of a list of samples; of one sample where `batched` is false.
        on_error: what becomes of a sample that raises: `raise` ends the job, `skip` leaves it out.
    """

    def __init__(self, dataset: Any, collate_fn: Callable[[Any], Any], batched: bool, on_error: str) -> None:
        self._dataset, self._collate_fn, self._batched, self._on_error = dataset, collate_fn, batched, on_error
        self._told = told_within(dataset)
        self._own: Held = {}
        self._batches = 0
        self.at: Any = None
        """The index of the sample that is being made; None: none."""

    def make(self, order: Order) -> Made:
        """The batch. Raises `SampleError`."""
        self._batches += 1
        # Each time: loaders of one dataset may be in different epochs.
        told_epoch = tell_epoch(self._told, order.seed, order.epoch, order.told)
        if told_epoch or self._batches & (self._batches - 1) == 0:  # the 1st, 2nd, 4th, …
            self._find_generators()
        with kept(self._own):
            made = self._make(order)
        if self._batches == 1 and self._find_generators():  # the samples have made some, that were not seeded
            with kept(self._own):
                made = self._make(order)
        return made

    def _find_generators(self) -> bool:
        """Whether there are others than before."""
        before = [id(each) for each in self._own.values()]
        self._own = generators_held(self._dataset, self._collate_fn)
        return any(id(each) not in before for each in self._own.values())

    def _make(self, order: Order) -> Made:
        skipped: list[tuple[Any, str]] = []
        samples = list(self._samples(order, skipped))
        if not samples:
            raise SampleError(f"all {len(skipped)} samples of a batch were skipped: {skipped[0][1]}")
        seed_all(sample_seed(order.seed, order.epoch, order.positions[0], _COLLATE), self._own)
        try:
            batch = self._collate_fn(samples if self._batched else samples[0])
        except Exception as error:
            raise SampleError(told(error, f"collate_fn, of samples {str(list(order.indices))[:100]},")) from error
        return Made(batch, skipped)

    def _samples(self, order: Order, skipped: list[tuple[Any, str]]) -> Iterator[Any]:
        if self._batched and self._on_error == "raise" and _takes_lists(self._dataset):
            seed_all(sample_seed(order.seed, order.epoch, order.positions[0]), self._own)
            self.at = order.indices[0]
            try:
                yield from self._dataset.__getitems__(list(order.indices))
            except Exception as error:
                raise SampleError(told(error, f"samples {str(list(order.indices))[:100]}")) from error
            finally:
                self.at = None
            return
        one_position = len(set(order.positions)) == 1  # of a batch sampler
        for place, (position, index) in enumerate(zip(order.positions, order.indices, strict=True)):
            seed_all(sample_seed(order.seed, order.epoch, position, place if one_position else 0), self._own)
            self.at = index
            try:
                yield self._dataset[index]
            except Exception as error:
                if self._on_error == "raise":
                    raise SampleError(told(error, f"sample {index}")) from error
                skipped.append((index, f"{type(error).__name__}: {error}"[:200]))
            finally:
                self.at = None


def tell_skipped(skipped: Sequence[tuple[Any, str]], before: int) -> int:
    """How many samples were left out of a batch; the first of a loader are told.

    Args:
        before: of earlier batches.
    """
    for number, (index, error) in enumerate(skipped):
        if before + number < MOST_SKIPS_TOLD:
            say("sample_skipped", rank=world.rank(), index=index, error=error)
    return len(skipped)


def _takes_lists(dataset: Any) -> bool:
    """Whether it makes the samples of a batch together, by a way of its own; `Subset` only passes that on."""
    innermost = dataset
    while isinstance(innermost, Subset):
        innermost = innermost.dataset
    return all(callable(getattr(each, "__getitems__", None)) for each in (dataset, innermost))


def read_order(record: Any) -> Order | StreamOrder:
    """An order from a message. Raises `InputError` for anything else."""
    if isinstance(record, dict) and "part" in record:
        return _read_stream_order(record)
    try:
        indices = [index_of_json(each) for each in record["indices"]]
        order = Order(int(record["seed"]), int(record["epoch"]), record["positions"], indices, _read_told(record))
        numbers = all(type(each) is int for each in order.positions)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"no order of a batch: {error!r}") from error
    if not numbers or not order.indices or len(order.indices) != len(order.positions):
        raise InputError("no order of a batch")
    return order


def _read_stream_order(record: dict[str, Any]) -> StreamOrder:
    numbers = {name: record.get(name) for name in ("seed", "epoch", "part", "parts", "number", "batch_size")}
    drop_last = record.get("drop_last")
    if not all(type(each) is int for each in numbers.values()) or not isinstance(drop_last, bool):
        raise InputError("no order of a batch")
    order = StreamOrder(**numbers, drop_last=drop_last, told=_read_told(record))  # type: ignore[arg-type]
    within = 0 <= order.part < order.parts <= MOST_PARTS and 0 <= order.batch_size <= MOST_SAMPLES
    if not within or order.number < 0:
        raise InputError("no order of a batch")
    return order


def _read_told(record: dict[str, Any]) -> list[Told]:
    told = record.get("told") or []
    for each in told if isinstance(told, list) else [told]:
        if each is not None and (not isinstance(each, list) or len(each) != 1 or isinstance(each[0], (list, dict))):
            raise InputError("no order of a batch")
    return list(told)


def told(error: Exception, what: str) -> str:
    """The error in a line, with the place in the user's code where it was raised, then the traceback."""
    trace = "".join(traceback.format_exception(*sys.exc_info()))
    return f"{what} raised {type(error).__name__}: {error}\n{trace}"
