"""Local mode: torch's own DataLoader makes the batches, in this process or in its worker processes."""

from __future__ import annotations

import functools
import itertools
import operator
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, get_worker_info

from headrace.errors import HeadraceError
from headrace.linux.processes import reopen_files
from headrace.torch import distributed
from headrace.torch.fetch.map_fetcher import Fetched, SampleError
from headrace.torch.fetch.rng import GLOBAL, WORKER, kept, sample_seed
from headrace.training.freed_memory import keep_freed_memory

Requests = Callable[[int], Any]


class LocalWorkers:
    """Makes one loader's batches on this host.

    Worker processes stay for all epochs and keep their copy of the dataset, as with torch's `persistent_workers`.
    """

    def __init__(self, loader: Any) -> None:
        self._theirs = loader
        self._idle: list[tuple[TorchDataLoader[Any], _Requests]] = []

    def open(self, request: Requests, has: Callable[[int], bool]) -> LocalEpoch:
        """Start the steps of an epoch. If another iteration is using the workers, start more workers for this one."""
        workers = loader, requests = self._idle.pop() if self._idle else self._make()
        theirs = self._theirs
        assert isinstance(loader.generator, torch.Generator)
        # Worker processes draw their own seeds from this generator.
        loader.generator.manual_seed(sample_seed(theirs.seed, theirs.epoch, theirs.rank, WORKER))
        requests.of_epoch = ([request(step)] for step in itertools.takewhile(has, itertools.count()))
        batches = iter(loader)  # raises if the sampler does
        return LocalEpoch(batches, functools.partial(self._idle.append, workers))

    def _make(self) -> tuple[TorchDataLoader[Any], _Requests]:
        theirs, requests = self._theirs, _Requests()
        count = theirs.local_workers
        begin = functools.partial(_begin_worker, theirs.is_stream, theirs.worker_init_fn, theirs.dataset)
        workers = {
            "num_workers": count,
            "timeout": theirs.timeout,
            "prefetch_factor": theirs.prefetch_factor,
            "worker_init_fn": begin,
            "persistent_workers": True,
            "multiprocessing_context": theirs.multiprocessing_context,
        }
        loader = TorchDataLoader(
            _Batches(theirs.fetcher(), in_process=not count),
            batch_sampler=requests,
            collate_fn=operator.itemgetter(0),
            pin_memory=theirs.pin_memory,
            generator=torch.Generator(),  # without it, each epoch would draw from the script's generator
            **(workers if count else {}),
        )
        return loader, requests


class LocalEpoch:
    """The batches of one iteration, in order. Worker processes make them; if there are none, this process does."""

    def __init__(self, batches: Iterator[Any], ended: Callable[[], None]) -> None:
        self._batches, self._ended = batches, ended

    def next(self) -> Fetched:
        """Return the next step's batch. Raises `SampleError`."""
        fetched: Fetched | str = next(self._batches)
        if isinstance(fetched, str):
            raise SampleError(fetched)
        return fetched

    def close(self) -> None:
        """Release the worker processes for another iteration."""
        self._batches = iter(())
        self._ended()


class _Requests:
    """Batch sampler that gives torch's loader one request for each step, in place of indices."""

    def __init__(self) -> None:
        self.of_epoch: Iterator[list[Any]] = iter(())

    def __iter__(self) -> Iterator[list[Any]]:
        return self.of_epoch


class _Batches(Dataset[Any]):
    """Dataset that gives torch's loader a whole batch, or the text of an error, for each request."""

    def __init__(self, fetcher: Any, in_process: bool) -> None:
        self._fetcher, self._in_process = fetcher, in_process

    def __getitem__(self, request: Any) -> Fetched | str:
        try:
            with kept(GLOBAL if self._in_process else ()):
                fetched: Fetched = self._fetcher.fetch(request)
        except HeadraceError as error:
            return str(error)
        return fetched


def _begin_worker(is_stream: bool, theirs: Callable[[int], None] | None, dataset: Any, number: int) -> None:
    keep_freed_memory()
    reopen_files()
    if is_stream:  # the shards divide the samples, so the dataset must see one rank. IterableFetcher calls `theirs`
        os.environ |= distributed.ALONE
        return
    info = get_worker_info()
    if info is not None:
        object.__setattr__(info, "dataset", dataset)  # the info is frozen; torch has put `_Batches` there
    if theirs:
        theirs(number)
