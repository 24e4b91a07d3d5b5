"""Local mode: the same orders, made by torch's own DataLoader in this process or in its worker processes."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, get_worker_info

from headrace.errors import HeadraceError
from headrace.torch import distributed as world
from headrace.torch.fetch.map_fetcher import Made, Order, SampleError, StreamOrder
from headrace.torch.fetch.rng import own_draws
from headrace.torch.forking import reopen_files
from headrace.torch.reused import Reused
from headrace.torch.sampling.epoch_plan import sample_seed
from headrace.training.freed_memory import keep_freed_memory

_WORKERS = 1 << 42
"""A place that no sample has: the loader processes' own seeds."""


class LocalBatches:
    """One loader's batches, made on this host; keeps its worker processes where they are persistent."""

    def __init__(self, loader: Any) -> None:
        self._theirs = loader
        # Parts begin anew each epoch in processes of their own, as on data hosts.
        self._persistent = loader.persistent_workers and not loader.is_stream
        self._kept: tuple[TorchDataLoader[Any], _Orders] | None = None
        self._busy = False

    def begin(self, order: Callable[[int], Order | StreamOrder], has: Callable[[int], bool]) -> LocalEpoch:
        """The steps that one epoch has, until closed. While persistent workers make another epoch, others make this."""
        keeps = self._persistent and not self._busy
        if keeps:
            self._kept = loader, orders = self._kept or self._make(persistent=True)
        else:
            loader, orders = self._make(persistent=False)
        theirs = self._theirs
        assert isinstance(loader.generator, torch.Generator)
        # Loader processes draw their seeds from it: others in each epoch and on each rank.
        loader.generator.manual_seed(sample_seed(theirs.seed, theirs.epoch, theirs.rank, _WORKERS))
        orders.begin(order, has)
        batches = iter(loader)  # may raise what the sampler does
        self._busy |= keeps
        return LocalEpoch(batches, self._ended if keeps else _nothing)

    def _ended(self) -> None:
        self._busy = False

    def _make(self, persistent: bool) -> tuple[TorchDataLoader[Any], _Orders]:
        theirs, orders = self._theirs, _Orders()
        count = theirs.local_workers
        begin = functools.partial(_begin_worker, theirs.worker_init_fn, theirs.dataset)
        workers = {
            "num_workers": count, "timeout": theirs.timeout, "prefetch_factor": theirs.prefetch_factor,
            "worker_init_fn": _begin_stream_worker if theirs.is_stream else begin,
            "persistent_workers": persistent,
            "multiprocessing_context": theirs.multiprocessing_context,
        } if count else {}  # fmt: skip
        maker = theirs.maker()
        loader = TorchDataLoader(
            _Made(maker, in_process=not count),
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
            batch, skipped, error, over = next(self._batches)
        except StopIteration as ended:
            raise SampleError("the worker processes have ended before the epoch") from ended
        if error:
            raise SampleError(error)
        return Made(batch, skipped, over)

    def close(self) -> None:
        """Ends worker processes that are not persistent."""
        self._batches = iter(())
        self._ended()


class _Orders:
    """torch's view of an epoch: a sampler of batches, each of one index, which is an order."""

    def __init__(self) -> None:
        self._order: Callable[[int], Order | StreamOrder] | None = None
        self._has: Callable[[int], bool] | None = None

    def begin(self, order: Callable[[int], Order | StreamOrder], has: Callable[[int], bool]) -> None:
        self._order, self._has = order, has

    def __iter__(self) -> Iterator[list[Order | StreamOrder]]:
        assert self._order is not None and self._has is not None
        for step in itertools.takewhile(self._has, itertools.count()):
            yield [self._order(step)]


class _Made(Dataset[Any]):
    """torch's view of the samples: each a whole batch."""

    def __init__(self, maker: Any, in_process: bool) -> None:
        self._maker, self._in_process, self._reused = maker, in_process, Reused()

    def __getitem__(self, order: Order | StreamOrder) -> tuple[Any, list[tuple[Any, str]], str, bool]:
        try:
            if self._in_process:
                with own_draws():
                    made = self._maker.make(order)
            else:
                made = self._maker.make(order)
        except HeadraceError as error:
            return None, [], str(error), False
        batch = made.batch if self._in_process else self._reused.own(made.batch)
        return batch, list(made.skipped), "", made.over


def _begin_worker(theirs: Callable[[int], None] | None, dataset: Any, number: int) -> None:
    keep_freed_memory()
    reopen_files()
    info = get_worker_info()
    if info is not None:
        object.__setattr__(info, "dataset", dataset)  # it is frozen; torch has put `_Made` there
    if theirs:
        theirs(number)


def _begin_stream_worker(number: int) -> None:
    """Parts are shared among the ranks already: a dataset that asks for its rank as well is told that there is one."""
    keep_freed_memory()
    reopen_files()
    os.environ |= world.ALONE
    for function, says in ((dist.get_rank, _rank_alone), (dist.get_world_size, _world_alone)):
        function.__code__ = says.__code__  # whoever has imported it by name has this object too


def _rank_alone(group: Any = None) -> int:
    return 0


def _world_alone(group: Any = None) -> int:
    return 1


def _nothing() -> None:
    pass


def _as_it_is(batches: list[Any]) -> Any:
    return batches[0]
