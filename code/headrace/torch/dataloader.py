"""`headrace.torch.DataLoader`: torch's DataLoader, with batches from feed servers where the job has any."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler
from torch.utils.data import DataLoader as TorchDataLoader

from headrace.errors import InputError
from headrace.events import READS_DATA, say
from headrace.job.settings import SECRET_VARIABLE, STALL_TIMEOUT_VARIABLE
from headrace.rank import liveness
from headrace.torch import distributed
from headrace.torch.feed import script
from headrace.torch.feed.client import FeedClients, Feeds, wait_until_known
from headrace.torch.feed.scheduler import DEFAULT_PREFETCH_BYTES
from headrace.torch.feed.stream_client import StreamEpoch
from headrace.torch.fetch.iterable_fetcher import IterableFetcher, ShardRequest
from headrace.torch.fetch.local_workers import LocalWorkers
from headrace.torch.fetch.map_fetcher import MOST_SKIPS_LOGGED, ON_ERROR, Fetched, Index, MapFetcher
from headrace.torch.fetch.pin_memory import DeviceCopies
from headrace.torch.sampling.rank_agreement import compare_with_rank_0, loader_config
from headrace.torch.sampling.rank_batches import EpochPlan, Planner
from headrace.torch.sampling.samplers import RankBatchSampler, refuse_dealing, without_batch_sampler
from headrace.torch.sampling.stream_shards import StreamShards

WAIT_SHARE = 0.9
"""Longest wait for a batch, as a share of `stall_timeout_s`. The loader must raise before the watchdog ends the job."""
DEFAULT_STALL_TIMEOUT_S = 600.0
DEFAULT_PREFETCH_FACTOR = 2
"""Default of `prefetch_factor`, the same as torch's."""
Steps = Generator[tuple[Any, Callable[[], None]], None, None]
"""Yields batches, each with the function to call when the script takes it."""
_say_once = functools.cache(say)


class DataLoader(TorchDataLoader[Any]):
    """torch's DataLoader, with the same arguments, for one rank of a job.

    If the job has feed servers, they make the batches; otherwise this process and its `num_workers` do. The batches are
    the same to the last bit. You can rely on these rules (`docs/pytorch.md` has an example of each):

    1. It takes torch's arguments, and yields the same batches whether data hosts or local workers make them.
    2. A batch depends only on seed, epoch, position, and the dataset as it was at the first `iter(loader)`. Workers
       keep this dataset, as with `persistent_workers=True`, and do not see later changes.
    3. After the first `iter`, only `loader.set_epoch(epoch)` reaches the workers. It sets order and random draws, and
       calls `dataset.set_epoch(epoch)` in each process that makes samples. Without it each `iter()` is the next epoch.
    4. All ranks make the same loaders in the same order, with the same seed and data, and iterate over them alike.
    5. The ranks share an epoch in `DistributedSampler`'s order and make equally many steps; up to `world − 1` samples
       repeat, or `drop_last` leaves some out. With `shard_by_rank=False` a rank takes all samples.
    6. Before each sample, these generators are seeded: the global ones of Python, NumPy and torch, and those that
       the dataset or its transforms have as attributes. Seed any other source of randomness yourself.
    7. Every rank runs the sampler from the same seed, once an epoch (endless samplers run ahead of training). A sampler
       must not depend on the rank or on training.
    8. An `IterableDataset` is copied `shards` times. Each copy must yield only what `get_worker_info()` gives it.
       All ranks stop at the same step. A resume replays each part, or uses the dataset's own `state_dict`.
    9. `state_dict()` holds seed, epoch and position (for streams: the position in each shard). It can be loaded on any
       number of ranks (streams: up to `shards`).
    10. Feed servers run the script as rank 0 of 1, without a GPU, up to the first batch. That part must be repeatable;
        `headrace.torch.is_feed_server()` is true there. Batches may hold only tensors, arrays and plain Python objects.

    Args:
        num_workers: worker processes of this rank, which stay for all epochs; 0: the rank makes batches itself. Feed
            servers ignore it and use all processors of their hosts.
        prefetch_factor: batches made ahead for each worker, by default 2. On data hosts each processor has a worker,
            and the ranks share these workers.
        timeout: seconds that a batch may take. 0: on feed servers, 80% of `stall_timeout_s`; elsewhere, no limit.
        seed: seed of the order and of the random draws. Default: the seed of `generator`; without one, a seed derived
            from the loader's `name`, or from its number among the script's loaders.
        on_error: what to do if a sample raises an error. `raise`: end the job. `skip`: leave out and count the sample.
        shard_by_rank: whether the ranks share the dataset. False: this rank takes all of it, or its sampler's part.
        shards: number of parts that an `IterableDataset`'s epoch is divided into; it determines the order. Each part
            has a process of its own. Default: ranks × max(`num_workers`, 1).
        prefetch_bytes: limit on the bytes of batches from feed servers that this rank holds; default 2 GiB. Two batches
            are always allowed.
        device: device that batches are put on. Copies to a GPU start from pinned memory, during the previous step.
        name: name of the loader on feed servers; by default its number among the script's loaders.

    Attributes:
        rank: this rank's number, from 0; always 0 with `shard_by_rank=False`.
        ranks: number of ranks that share the samples; 1 with `shard_by_rank=False`.
        epoch: the epoch of the current iteration, or of the next one.
        skipped: number of samples left out of the batches that this rank took.

    Raises:
        InputError: arguments exclude each other, or the dataset or sampler already divides samples among the ranks.
    """

    _dealt_batches: BatchSampler | None = None
    """The BatchSampler that torch has made for this loader. This sampler covers all samples, not one rank's part."""
    _is_accelerate_prepared = True
    """Tells Accelerate's `prepare` to leave the loader unchanged: the loader already divides samples among ranks."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        *,
        seed: int | None = None,
        on_error: str = "raise",
        shard_by_rank: bool = True,
        shards: int = 0,
        prefetch_bytes: int = DEFAULT_PREFETCH_BYTES,
        device: torch.device | str | None = None,
        name: str = "",
        **torchs: Any,
    ) -> None:
        distributed.check_world()
        self.rank, self.ranks = (distributed.rank(), distributed.world_size()) if shard_by_rank else (0, 1)
        self.is_stream = isinstance(dataset, IterableDataset)
        _check(self.is_stream, on_error, shards, torchs)
        self._copies = DeviceCopies(torch.device(device)) if device is not None else None
        if self._copies and self._copies.pins:
            torchs["pin_memory"] = True
        if shard_by_rank:
            drop_last = torchs.pop("drop_last", False)
            made = without_batch_sampler(dataset, self.ranks, batch_size, shuffle, sampler, batch_sampler, drop_last)
            batch_size, sampler, batch_sampler, torchs["drop_last"] = made
        super().__init__(dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, **torchs)
        if self.ranks > 1 and not self.is_stream:
            refuse_dealing(sampler if batch_sampler is None else batch_sampler, self.ranks, dataset)
        self.on_error, self.skipped, self._prefetch_bytes = on_error, 0, prefetch_bytes
        self._limit_s = WAIT_SHARE * float(os.environ.get(STALL_TIMEOUT_VARIABLE) or DEFAULT_STALL_TIMEOUT_S)
        own: Any = weakref.proxy(self)  # a reference cycle would keep worker processes after the loader is dropped
        self._shards = StreamShards(own, shards, self.rank, self.ranks, self._limit_s) if self.is_stream else None
        batched = batch_sampler is not None
        self.planner = Planner(own, sampler is not None or batched, batched)
        if not self.is_stream and not batched and isinstance(self.batch_sampler, BatchSampler):
            self._dealt_batches = self.batch_sampler
        self._place = script.register(self, shard_by_rank, name)
        self.key = self._place.key  # ranks and feed servers know the loader by this key
        if seed is None:
            seed = self._place.seed if self.generator is None else self.generator.initial_seed()
        self.seed = int(seed)
        self._sampler_epoch = self.planner.sampler_epoch()
        self.epoch = self._sampler_epoch or self._place.next_epoch
        self._position = 0
        self.begun = self._whole = False  # whether this epoch has begun, and whether it is over
        self._servers = script.feed_servers(os.environ)
        self._feeds: Feeds | None = None
        self._local, self._clients = LocalWorkers(own), FeedClients()
        weakref.finalize(self, self._clients.close)  # runs when the loader is dropped or Python exits

    @property
    def batch_sampler(self) -> Any:  # type: ignore[override]
        """The script's batch sampler. Without one, a map-style dataset gets a sampler of this rank's batches."""
        made = self.__dict__["batch_sampler"]
        return RankBatchSampler(self, made) if made is self._dealt_batches and made is not None else made

    @batch_sampler.setter
    def batch_sampler(self, given: Any) -> None:
        if "batch_sampler" in self.__dict__:
            raise InputError(
                "the script has replaced the loader's batch_sampler, as InfiniteDataLoader and MultiEpochsDataLoader "
                "do to keep workers. This loader keeps its workers anyway: pass the sampler when you make the loader"
            )
        self.__dict__["batch_sampler"] = given

    # Properties that feed servers and local workers read

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """Facts that must be the same on all ranks and feed servers. They are collected once, at the first read."""
        return loader_config(self)

    def fetcher(self) -> MapFetcher | IterableFetcher:
        """Return the object that makes this loader's batches."""
        if self.is_stream:
            return IterableFetcher(self)
        return MapFetcher(self.dataset, self.collate_fn, self.batch_sampler is not None, self.on_error)

    @property
    def local_workers(self) -> int:
        """Number of worker processes with which this process makes batches; 0: it makes them without workers."""
        return self._shards.local_workers if self._shards else self.num_workers or script.process.processors

    @property
    def made_elsewhere(self) -> bool:
        """True if feed servers make the batches."""
        return bool(self._servers)

    # Epochs and positions

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration. Each epoch has an order of its own."""
        if self.planner.dealt:
            self.sampler.set_epoch(epoch)
            self._sampler_epoch = self.planner.sampler_epoch()
        if epoch != self.epoch or self.begun:
            self.epoch, self._position, self.begun, self._whole = int(epoch), 0, False, False
            if self._shards:
                self._shards.begin_epoch()

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's position, for `load_state_dict` on any number of ranks."""
        place = self._shards.place(self._whole) if self._shards else {}
        epoch, position = (self.epoch + 1, 0) if self._whole else (self.epoch, self._position)
        return {"seed": self.seed, "epoch": epoch, "position": position, **place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have the next iteration begin at this position. Raises `InputError` if `state` is not from `state_dict`."""
        try:
            seed, epoch, position = (int(state[name]) for name in ("seed", "epoch", "position"))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"this is not from a DataLoader's state_dict(): {state!r:.200}") from error
        self.set_epoch(epoch)
        if self._shards:
            self._shards.go_to(state, at_the_beginning=position == 0)
        self.seed, self.epoch, self._position, self.begun, self._whole = seed, epoch, position, False, False

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch on this rank; an estimate for an `IterableDataset`."""
        return -(-super().__len__() // self.ranks) if self.is_stream else self.planner.steps()

    def last_copy_s(self) -> float | None:
        """Return the seconds that the last batch's copy to the GPU took; None: the loader does not copy to a GPU."""
        return self._copies.last_s() if self._copies else None

    def next_indices(self) -> Iterator[list[Index]]:
        """Yield the indices of this rank's batches in the next iteration. Does not change the loader's position."""
        script.batch_asked_for()
        epoch, position = (self.epoch + 1, 0) if self.begun else (self.epoch, self._position)
        if self.planner.sampler_epoch() != self._sampler_epoch:
            epoch, position = self.planner.sampler_epoch(), 0
        plan = self.planner.plan(epoch, position)
        for step in itertools.takewhile(plan.has, itertools.count()):
            yield list(plan.request(step).indices)

    # Iterations

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        script.batch_asked_for()
        if STALL_TIMEOUT_VARIABLE in os.environ:  # from now on, a hang may be a wait for data
            _say_once(READS_DATA)
        self._begin_epoch()
        steps, source = self._open_stream() if self.is_stream else self._open_steps()
        return _Iteration(self, self._copies.ahead(steps) if self._copies else steps, source)

    def _begin_epoch(self) -> None:
        """Choose the iteration's epoch, and whether feed servers or local workers make its batches."""
        if self.planner.sampler_epoch() != self._sampler_epoch:  # the script has called sampler.set_epoch
            self.set_epoch(self.planner.sampler_epoch())
        elif self.begun:
            self.epoch, self._position = self.epoch + 1, 0
            if self._shards:
                self._shards.begin_epoch()
        self._place.next_epoch = self.epoch + 1
        self._place.iterations += 1
        self.begun, self._whole = True, False
        if self._servers and self._feeds is None:
            self._find_feeds()

    def _find_feeds(self) -> None:
        """Wait until a feed server has this loader. If no server ever will, this rank makes all its batches itself."""
        feeds = Feeds(
            servers=self._servers,
            secret=os.environ.get(SECRET_VARIABLE, ""),
            hello={"loader": self.key, "config": self.config, "late": self._place.late},
            rank=distributed.rank(),
            world=distributed.world_size(),
            limit_s=self._limit_s,
            pin_memory=bool(self.pin_memory and torch.cuda.is_available()),
            prefetch_factor=self.prefetch_factor or DEFAULT_PREFETCH_FACTOR,
            prefetch_bytes=self._prefetch_bytes,
        )
        if wait_until_known(feeds.servers, feeds.secret, feeds.hello, self._limit_s):
            self._feeds = feeds
            return
        self._servers = ()
        script.print_once(
            "the script makes a loader after training has begun, so data hosts do not have the loader. This rank makes "
            "the loader's batches in num_workers processes. If data hosts are to make the batches, create the loader "
            "before training, or give the loader the same name in each epoch (name='train')"
        )

    def _agree(self, **begins: Any) -> Any:
        """Compare settings with those on rank 0. Return the ranks' store. Raises `InputError`, `DeadlineError`."""
        distributed.check_world()
        store = distributed.store_of_ranks() if self.ranks > 1 else None
        if store is not None:
            # The key is the epoch, not a count of iterations: one rank may look at a batch before it calls set_epoch.
            compare_with_rank_0(
                store, f"loader {self.key}, epoch {self.epoch}", self.rank, self._limit_s, {**self.config, **begins}
            )
        elif self.ranks > 1:
            script.print_once(
                "warning: torch.distributed does not connect the ranks: call headrace.torch.init(). Otherwise each "
                "rank trains its own model, unless another library averages the gradients"
            )
        return store

    def _open_steps(self) -> tuple[Steps, Any]:
        plan = self.planner.plan(self.epoch, self._position)
        plan.has(0)  # if the sampler is long or endless, draws the indices of the first steps
        if self._feeds:
            source: Any = self._clients.begin(self._feeds, plan.request, plan.known)
        else:
            source = self._local.open(plan.request, plan.has)
        shuffled = f"shuffled with seed {self.seed}" if isinstance(self.sampler, RandomSampler) else "in order"
        self._agree(order=plan.digest() if self.planner.own else shuffled)
        return self._steps(plan, source), source

    def _steps(self, plan: EpochPlan, source: Any) -> Steps:
        number = self.epoch
        for step in itertools.takewhile(plan.has, itertools.count()):
            fetched = source.next()
            after, whole = plan.position_after(step + 1), step + 1 == plan.known()
            yield fetched.batch, functools.partial(self._take, fetched, number, after, whole)

    def _open_stream(self) -> tuple[Steps, Any]:
        assert self._shards is not None
        store = self._agree()
        name = f"headrace/stream {self.key}/{self._place.iterations}"
        batches, source = self._shards.batches(self._open_shards, name, store)
        return self._stream_steps(batches), source

    def _open_shards(self, request: Callable[[int, int], ShardRequest], count: int) -> Any:
        if not self._feeds:
            return self._local.open(lambda step: request(step % count, step // count), lambda step: True)
        return StreamEpoch(self._feeds, request, count)

    def _stream_steps(self, batches: Iterator[Fetched]) -> Steps:
        number, position = self.epoch, self._position
        for fetched in batches:
            position += (self.batch_size or 1) * self.ranks
            yield fetched.batch, functools.partial(self._take, fetched, number, position, False)

    def end_epoch(self, epoch: int) -> None:
        """Record that an iteration has yielded all batches of this epoch."""
        self._whole = self._whole or (self.epoch, self.begun) == (epoch, True)

    def _take(self, fetched: Fetched, epoch: int, position: int, whole: bool) -> None:
        """Record that the script has taken a batch. A batch of an earlier epoch does not change the position."""
        if (self.epoch, self.begun) == (epoch, True):
            self._position, self._whole = position, whole
            if self._shards:
                self._shards.steps += 1
        liveness.note_progress()
        for index, error in fetched.skipped:
            if self.skipped < MOST_SKIPS_LOGGED:
                say("sample_skipped", rank=distributed.rank(), index=index, error=error)
            self.skipped += 1


class _Iteration(Iterator[Any]):
    """One iteration over a loader. If `next` has raised an error, another call of `next` ends the process.

    After an error, the remaining batches are lost. If a script caught the error, called `next` again and got
    `StopIteration`, it would believe that the epoch is complete.
    """

    def __init__(self, loader: DataLoader, steps: Steps, source: Any) -> None:
        self._loader, self._steps, self._epoch = loader, steps, loader.epoch
        self._error: Exception | None = None
        # Called at the latest when Python exits: if a thread were still inside torch, the process would abort.
        self.close = weakref.finalize(self, _drop_rest, os.getpid(), steps, source)

    def __next__(self) -> Any:
        if self._error is not None:
            said = str(self._error).partition("\n")[0]
            raise SystemExit(
                "the script went on after its loader had raised an error. To leave out samples that raise, set "
                f"on_error='skip'. The error: {said}"
            )
        try:
            batch, take = next(self._steps)
        except StopIteration:
            self._loader.end_epoch(self._epoch)
            self.close()
            raise
        except Exception as error:
            self._error = error
            self.close()
            raise
        take()
        return batch

    def __len__(self) -> int:
        return len(self._loader)


def _drop_rest(process: int, steps: Steps, source: Any) -> None:
    """Drop the rest of an iteration, unless this is a process that was forked during the iteration."""
    if os.getpid() == process:
        source.close()
        with contextlib.suppress(ValueError):  # a thread of the script is taking a batch
            steps.close()


def _check(is_stream: bool, on_error: str, shards: int, torchs: dict[str, Any]) -> None:
    """Raise `InputError` for invalid values of headrace's own arguments, and for unsupported arguments of torch."""
    if on_error not in ON_ERROR:
        raise InputError(f"on_error is {on_error!r}; expected one of {', '.join(ON_ERROR)}")
    if shards and not is_stream:
        raise InputError("shards is for an IterableDataset: remove this argument, or use an IterableDataset")
    if is_stream and on_error == "skip":
        raise InputError("on_error='skip' needs a map-style dataset. In an IterableDataset, catch errors in __iter__")
    if torchs.pop("in_order", True) is False:
        raise InputError("in_order=False is not supported: remove it. A resume relies on the order of batches")
    if torchs.get("pin_memory_device"):
        raise InputError("pin_memory_device is not supported: use pin_memory=True or device=")
