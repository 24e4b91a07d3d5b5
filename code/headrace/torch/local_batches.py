"""Local mode: the same orders, made by torch's own DataLoader in this process or in its worker processes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, get_worker_info

from headrace.errors import HeadraceError, InputError
from headrace.torch.fetch import Made, Maker, Order, SampleError, own_draws
from headrace.torch.order import sample_seed
from headrace.training.freed_memory import keep_freed_memory

_WORKERS = 1 << 42
"""A place that no sample has: the loader processes' own seeds."""


class LocalBatches:
    """One loader's batches, made on this host; keeps its worker processes where they are persistent."""

    def __init__(self, loader: Any) -> None:
        self._theirs = loader
        self._kept: tuple[TorchDataLoader[Any], _Orders] | None = None
        self._busy = False

    def begin(self, order: Callable[[int], Order], steps: int) -> LocalEpoch:
        """The steps of one epoch. Raises `InputError` while persistent workers make another."""
        if not self._theirs.persistent_workers:
            loader, orders = self._make()
        elif self._busy:
            raise InputError("a second iteration over a loader with persistent_workers began before the first was over")
        else:
            self._kept = loader, orders = self._kept or self._make()
            self._busy = True
        theirs = self._theirs
        assert isinstance(loader.generator, torch.Generator)
        # Loader processes draw their seeds from it: others in each epoch and on each rank.
        loader.generator.manual_seed(sample_seed(theirs.seed, theirs.epoch, theirs.rank, _WORKERS))
        orders.begin(order, steps)
        return LocalEpoch(iter(loader), self._ended)

    def _ended(self) -> None:
        self._busy = False

    def _make(self) -> tuple[TorchDataLoader[Any], _Orders]:
        theirs, orders = self._theirs, _Orders()
        workers = {
            "num_workers": theirs.num_workers, "timeout": theirs.timeout, "prefetch_factor": theirs.prefetch_factor,
            "worker_init_fn": functools.partial(_begin_worker, theirs.worker_init_fn, theirs.dataset),
            "persistent_workers": theirs.persistent_workers,
            "multiprocessing_context": theirs.multiprocessing_context,
        } if theirs.num_workers else {}  # fmt: skip
        loader = TorchDataLoader(
            _Made(theirs.maker(), in_process=not theirs.num_workers),
            batch_sampler=orders,
            collate_fn=_as_it_is,
            pin_memory=theirs.pin_memory,
            generator=torch.Generator(),  # else each epoch would draw from the script's
            **workers,
        )
        return loader, orders


class LocalEpoch:
    """The batches of one iteration."""

    def __init__(self, batches: Iterator[Any], ended: Callable[[], None]) -> None:
        self._batches, self._ended = batches, ended

    def next(self) -> Made:
        """The next step's batch. Raises `SampleError`."""
        try:
            batch, skipped, error = next(self._batches)
        except StopIteration as over:
            raise SampleError("the worker processes have ended before the epoch") from over
        if error:
            raise SampleError(error)
        return Made(batch, skipped)

    def close(self) -> None:
        """Ends worker processes that are not persistent."""
        self._batches = iter(())
        self._ended()


class _Orders:
    """torch's view of an epoch: a sampler of batches, each of one index, which is an order."""

    def __init__(self) -> None:
        self._order: Callable[[int], Order] | None = None
        self._steps = 0

    def begin(self, order: Callable[[int], Order], steps: int) -> None:
        self._order, self._steps = order, steps

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[list[Order]]:
        assert self._order is not None
        for step in range(self._steps):
            yield [self._order(step)]


class _Made(Dataset[Any]):
    """torch's view of the samples: each a whole batch."""

    def __init__(self, maker: Maker, in_process: bool) -> None:
        self._maker, self._in_process = maker, in_process

    def __getitem__(self, order: Order) -> tuple[Any, list[tuple[Any, str]], str]:
        try:
            if self._in_process:
                with own_draws():
                    made = self._maker.make(order)
            else:
                made = self._maker.make(order)
        except HeadraceError as error:
            return None, [], str(error)
        return made.batch, list(made.skipped), ""


def _begin_worker(theirs: Callable[[int], None] | None, dataset: Any, number: int) -> None:
    keep_freed_memory()
    info = get_worker_info()
    if info is not None:
        object.__setattr__(info, "dataset", dataset)  # it is frozen; torch has put `_Made` there
    if theirs:
        theirs(number)


def _as_it_is(batches: list[Any]) -> Any:
    return batches[0]
