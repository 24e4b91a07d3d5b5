"""`headrace.torch.DataLoader`: torch's, whose batches come from feed servers where the job has them."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
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
from headrace.torch.feed.client import FeedClient, FeedClients, wait_until_known
from headrace.torch.feed.scheduler import DEFAULT_PREFETCH_BYTES
from headrace.torch.feed.stream_client import StreamEpoch
from headrace.torch.fetch.iterable_fetcher import IterableFetcher, ShardRequest
from headrace.torch.fetch.local_workers import LocalWorkers
from headrace.torch.fetch.map_fetcher import ON_ERROR, Fetched, Index, MapFetcher, log_skipped
from headrace.torch.fetch.pin_memory import DeviceCopies
from headrace.torch.sampling.epoch_plan import EpochPlan, Planner
from headrace.torch.sampling.rank_agreement import compare_with_rank_0, loader_config
from headrace.torch.sampling.samplers import RankBatchSampler, refuse_dealing, without_batch_sampler
from headrace.torch.sampling.stream_shards import StreamShards

WAIT_SHARE = 0.9
"""A wait for a batch takes at most this share of `stall_timeout_s`, so that it is named before the watchdog ends the
job."""
DEFAULT_STALL_TIMEOUT_S = 600.0
DEFAULT_PREFETCH_FACTOR = 2
"""torch's own."""
Step = tuple[Any, Callable[[], None]]
"""A batch, and what notes that it is handed out."""
_batches_taken = 0
liveness.add_counter(lambda: _batches_taken)
_told: set[str] = set()


class DataLoader(TorchDataLoader[Any]):
    """torch's DataLoader with its own arguments and meaning, for one rank of a job.

    Where the job has feed servers, they make the batches; else this process and its `num_workers` do. The batches are
    the same to the last bit. What you can rely on (`docs/pytorch.md` has an example of each):

    1. It takes torch's arguments, and yields the same batches whether data hosts or local workers make them.
    2. A batch follows from seed, epoch, place, and the dataset as it was at the first `iter(loader)`. Workers keep that
       copy, as with `persistent_workers=True`; later changes are not seen.
    3. The only channel afterwards is `loader.set_epoch(epoch)`: it chooses order and draws, and calls
       `dataset.set_epoch(epoch)` wherever samples are made. Without it each `iter()` is the next epoch.
    4. All ranks make the same loaders in the same order, with the same seed and data, and iterate alike.
    5. The ranks share an epoch in `DistributedSampler`'s order with equal steps; up to `world − 1` samples repeat, or
       `drop_last` leaves some out. `shard_by_rank=False` gives a rank everything.
    6. Python's, NumPy's and torch's global generators are seeded for each sample, and those that are attributes of the
       dataset or of its transforms; other randomness is yours.
    7. Samplers run on every rank from one seed, once an epoch (endless ones ahead of training), so they may depend on
       neither rank nor training.
    8. An `IterableDataset` shares by `get_worker_info()` over `shards`; ranks stop together; a resume replays the
       shard, or uses the dataset's own `state_dict`.
    9. `state_dict()` is seed, epoch and position (for streams, of each shard), loadable on any number of ranks
       (streams: up to `shards`).
    10. Feed servers run the script as rank 0 of 1, without a GPU, up to the first batch. What precedes it must be
        repeatable; only plain data travels. `headrace.torch.is_feed_server()` tells the script where it is.

    Args:
        num_workers: local mode's processes, which stay for all epochs; 0: this process makes batches. Feed servers use
            all processors of their hosts, whatever this says.
        prefetch_factor: batches made ahead for each worker; on data hosts each processor has a worker, and the ranks
            share them. Default 2.
        timeout: seconds that a sample may take; 0: on feed servers 0.8 `stall_timeout_s`, else no limit.
        seed: of order and draws. By default that of `generator`, else one that follows from the loader's place in the
            script.
        on_error: `raise`: a sample that raises ends the job. `skip`: it is left out of its batch, and counted.
        shard_by_rank: whether the ranks share the dataset. False: this rank takes all of it, or its sampler's part.
        shards: parts of an `IterableDataset`'s epoch, which its order follows from. Each has a process of its own. By
            default `num_workers` for each rank, at least one.
        prefetch_bytes: most bytes of batches from feed servers that this rank holds; default 2 GiB. It may always hold
            two batches.
        device: where batches are put. To a GPU they go from pinned memory, beside the step before.
        name: identifies the loader to feed servers in place of its number among the script's loaders.

    Attributes:
        rank, ranks: which part of the samples this loader takes; 0 and 1 with `shard_by_rank=False`.
        epoch: the epoch of the current iteration, or of the next one.
        skipped: samples that the batches taken by this rank lack.

    Raises:
        InputError: arguments that exclude each other, or a dataset or sampler that shares among ranks itself.
    """

    _dealt_batches: BatchSampler | None = None
    """torch's own BatchSampler, which knows nothing of ranks."""
    _is_accelerate_prepared = True
    """Accelerate's `prepare` returns the loader as it is: it deals to the ranks already."""

    def __init__(self, dataset: Any, batch_size: int | None = 1, shuffle: bool | None = None, sampler: Any = None,
                 batch_sampler: Any = None, num_workers: int = 0, *, seed: int | None = None, on_error: str = "raise",
                 shard_by_rank: bool = True, shards: int = 0, prefetch_bytes: int = DEFAULT_PREFETCH_BYTES,
                 device: torch.device | str | None = None, name: str = "", **torchs: Any) -> None:  # fmt: skip
        distributed.check_world()
        self.rank, self.ranks = (distributed.rank(), distributed.world_size()) if shard_by_rank else (0, 1)
        self.is_stream = isinstance(dataset, IterableDataset)
        _check(self.is_stream, on_error, shards, prefetch_bytes, torchs)
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
        own: Any = weakref.proxy(self)  # a cycle would keep the worker processes of a loader that is gone
        self._shards = StreamShards(own, shards, self.rank, self.ranks, self._limit_s) if self.is_stream else None
        batched = batch_sampler is not None
        self._planner = Planner(own, sampler is not None or batched, batched)
        if not self.is_stream and not batched and isinstance(self.batch_sampler, BatchSampler):
            self._dealt_batches = self.batch_sampler
        made_by = (self.collate_fn, self.worker_init_fn, on_error, self.batch_sampler is None)
        self._place = script.register(self, made_by, shard_by_rank, name)
        self.seed = int(self._default_seed() if seed is None else seed)
        self.epoch, self._sampler_epoch = self._place.next_epoch, self._planner.sampler_epoch()
        self.epoch = self._sampler_epoch or self.epoch
        self._position = 0
        self.begun = self._whole = False  # this epoch
        self._as_made = self._samplers()
        self._feeds: Sequence[str] | None = None
        self._servers = script.feed_servers(os.environ)
        self._local, self._clients = LocalWorkers(own), FeedClients()
        weakref.finalize(self, self._clients.close)
        self._config: dict[str, Any] = {}
        self._dataset_then: dict[str, Any] | None = None

    def _default_seed(self) -> int:
        return self._place.seed if self.generator is None else int(self.generator.initial_seed())

    @property
    def batch_sampler(self) -> Any:  # type: ignore[override]
        """What says the batches; in place of torch's own BatchSampler, one that yields this rank's batches."""
        made = self.__dict__["batch_sampler"]
        return RankBatchSampler(self, made) if made is self._dealt_batches and made is not None else made

    @batch_sampler.setter
    def batch_sampler(self, given: Any) -> None:
        self.__dict__["batch_sampler"] = given

    def _samplers(self) -> tuple[Any, Any]:
        return self.__dict__["batch_sampler"], self.sampler

    # What feed servers and local workers ask

    @property
    def key(self) -> str:
        """What ranks and feed servers know the loader by."""
        return self._place.key

    @property
    def config(self) -> dict[str, Any]:
        """What must be the same on all ranks and feed servers, as it was when it was first asked for."""
        if not self._config:
            length = None if self.is_stream or not hasattr(self.dataset, "__len__") else len(self.dataset)
            self._config = loader_config(self.dataset, length=length, on_error=self.on_error)
        return self._config

    def fetcher(self) -> MapFetcher | IterableFetcher:
        """Return what makes this loader's batches."""
        if self.is_stream:
            return IterableFetcher(self.dataset, self.collate_fn, self.worker_init_fn, self.num_workers)
        return MapFetcher(self.dataset, self.collate_fn, self.batch_sampler is not None, self.on_error)

    @property
    def local_workers(self) -> int:
        """Processes of this rank that make its batches in local mode; 0: it makes them itself."""
        return self._shards.local_workers if self._shards else self.num_workers or script.workers_of_server()

    @property
    def made_elsewhere(self) -> bool:
        """Whether feed servers make the batches."""
        return bool(self._servers if self._feeds is None else self._feeds)

    @property
    def shards(self) -> int:
        """Shards of an `IterableDataset`'s epoch; 0 for a map-style dataset."""
        return self._shards.shards if self._shards else 0

    # Epochs and places

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be over this epoch, which has an order of its own."""
        if self._planner.dealt:
            self.sampler.set_epoch(epoch)
            self._sampler_epoch = self._planner.sampler_epoch()
        if epoch != self.epoch or self.begun:
            self.epoch, self._position, self.begun, self._whole = int(epoch), 0, False, False
            if self._shards:
                self._shards.begin_epoch()

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader stands, for `load_state_dict` on any number of ranks."""
        place = self._shards.place(self._whole) if self._shards else {}
        if self._whole:
            return {"seed": self.seed, "epoch": self.epoch + 1, "position": 0, **place}
        return {"seed": self.seed, "epoch": self.epoch, "position": self._position, **place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration continue there. Raises `InputError` for what is not the state of a loader."""
        try:
            seed, epoch, position = (int(state[name]) for name in ("seed", "epoch", "position"))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"not the state of a DataLoader: {state!r:.200}") from error
        self.set_epoch(epoch)
        if self._shards:
            self._shards.go_to(state, at_the_beginning=position == 0)
        self.seed, self.epoch, self._position, self.begun, self._whole = seed, epoch, position, False, False

    def __len__(self) -> int:
        """Return the batches of a whole epoch on this rank; for an `IterableDataset` with a length, about as many."""
        return -(-super().__len__() // self.ranks) if self.is_stream else self.step_count()

    def step_count(self) -> int:
        """Return this rank's steps of a whole epoch. Raises `TypeError` where the sampler has no length, as torch."""
        return self._planner.steps()

    @property
    def copies_to_gpu(self) -> bool:
        """Whether batches are copied to a GPU beside the step before."""
        return self._copies is not None and self._copies.pins

    def last_copy_s(self) -> float:
        """Return the seconds in which the batch that was handed out last was copied to the GPU."""
        return self._copies.last_s() if self._copies else 0.0

    @property
    def length_is_a_guess(self) -> bool:
        """Whether the script's own sampler says the length; some yield more than they say."""
        return self._planner.own

    def next_indices(self) -> Iterator[list[Index]]:
        """Yield this rank's indices of the epoch that the next iteration is over; the loader stays where it is."""
        script.batch_asked_for()
        epoch, position = (self.epoch + 1, 0) if self.begun else (self.epoch, self._position)
        if self._planner.sampler_epoch() != self._sampler_epoch:
            epoch, position = self._planner.sampler_epoch(), 0
        yield from self._planner.plan(epoch, position).indices()

    # Iterations

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        script.batch_asked_for()
        if "reads" not in _told and STALL_TIMEOUT_VARIABLE in os.environ:  # a hang before it is not blamed on data
            _told.add("reads")
            say(READS_DATA)
        self._begin_epoch()
        steps, source = self._open_stream() if self.is_stream else self._open_steps()
        return _Iteration(self, self._copies.ahead(steps) if self._copies else steps, source)

    def _begin_epoch(self) -> None:
        """Decide which epoch the iteration is over, and who makes its batches."""
        if any(now is not then for now, then in zip(self._samplers(), self._as_made, strict=True)):
            raise InputError(
                "the script has put another sampler into the loader, as InfiniteDataLoader and MultiEpochsDataLoader "
                "do: give the loader its sampler when it is made; its workers stay for all epochs anyway"
            )
        if self._planner.sampler_epoch() != self._sampler_epoch:  # the script has called sampler.set_epoch
            self.set_epoch(self._planner.sampler_epoch())
        elif self.begun:
            self.epoch, self._position = self.epoch + 1, 0
            if self._shards:
                self._shards.begin_epoch()
        self._place.next_epoch = self.epoch + 1
        self._place.iterations += 1
        self.begun, self._whole = True, False
        if self._feeds is None:
            self._feeds = self._servers_that_know()
        self._warn_of_changes()

    def _servers_that_know(self) -> Sequence[str]:
        if not self._servers:
            return ()
        if wait_until_known(self._servers, self._secret(), self._hello(), self._limit_s):
            return self._servers
        if "unknown" not in _told:
            _told.add("unknown")
            print(
                f"data hosts do not have loader {self.key} of the script, since it is made after training has begun: "
                "this rank makes its batches in num_workers processes. Make it earlier, or give it a name that it "
                "keeps in each epoch (name='train'), and data hosts make them",
                flush=True,
            )
        return ()

    def _warn_of_changes(self) -> None:
        """Warn of plain attributes that the script has set on the dataset; workers do not see them (rule 2)."""
        if not self.made_elsewhere and not self.local_workers:
            return
        now = _plain_attributes(self.dataset) | {"collate_fn": id(self.collate_fn)}
        if self._dataset_then is None:
            self._dataset_then = now
        changed = [name for name in now if now[name] != self._dataset_then.get(name)]
        if changed and "changed" not in _told:
            _told.add("changed")
            print(
                f"warning: {', '.join(changed[:5])} of loader {self.key}'s dataset changed since its first iteration, "
                "and the processes that make samples keep their copy: compute it in dataset.set_epoch(epoch), and "
                "call loader.set_epoch(epoch)",
                flush=True,
            )

    def _agree(self, **begins: Any) -> None:
        """Compare this iteration with rank 0's. Raises `InputError`, `DeadlineError`."""
        distributed.check_world()
        store = distributed.store_of_ranks() if self.ranks > 1 else None
        if store is not None:
            # By epoch: one rank may take a look at a batch, and call set_epoch afterwards.
            compare_with_rank_0(
                store, f"loader {self.key}, epoch {self.epoch}", self.rank, self._limit_s, {**self.config, **begins}
            )
        elif self.ranks > 1 and "alone" not in _told:
            _told.add("alone")
            print(
                "warning: torch.distributed does not connect the ranks, so unless something else averages gradients "
                "each rank trains a model of its own: call headrace.torch.init()",
                flush=True,
            )

    def _hello(self) -> dict[str, Any]:
        return {"loader": self.key, "config": self.config, "late": self._place.late}

    @staticmethod
    def _secret() -> str:
        return os.environ.get(SECRET_VARIABLE, "")

    def _pins(self) -> bool:
        return bool(self.pin_memory and torch.cuda.is_available())

    def _open_steps(self) -> tuple[Iterator[Step], Any]:
        plan = self._planner.plan(self.epoch, self._position)
        plan.has(0)  # an endless sampler draws its first part
        if self._feeds:
            source: Any = self._clients.begin(self._feed_client, plan.request, plan.known)
        else:
            source = self._local.open(plan.request, plan.has)
        shuffled = f"shuffled with seed {self.seed}" if isinstance(self.sampler, RandomSampler) else "in order"
        self._agree(order=plan.digest() if self._planner.own else shuffled)
        return self._steps(plan, source), source

    def _feed_client(self) -> FeedClient:
        return FeedClient(
            self._feeds or (), self._secret(), self._hello(), distributed.rank(), distributed.world_size(),
            self._limit_s, self._pins(), self.prefetch_factor or DEFAULT_PREFETCH_FACTOR, self._prefetch_bytes,
        )  # fmt: skip

    def _steps(self, plan: EpochPlan, source: Any) -> Iterator[Step]:
        number = self.epoch
        for step in itertools.takewhile(plan.has, itertools.count()):
            fetched = source.next()
            after, whole = plan.position_after(step + 1), step + 1 == plan.known()
            yield fetched.batch, functools.partial(self._take, fetched, number, after, whole)

    def _open_stream(self) -> tuple[Iterator[Step], Any]:
        assert self._shards is not None
        self._agree()
        store = distributed.store_of_ranks() if self.ranks > 1 else None
        name = f"headrace/stream {self.key}/{self._place.iterations}"
        batches, source = self._shards.batches(self._open_shards, name, store)
        return self._stream_steps(self._shards, batches), source

    def _open_shards(self, request: Callable[[int, int], ShardRequest], count: int) -> Any:
        if not self._feeds:
            return self._local.open(lambda step: request(step % count, step // count), lambda step: True)
        first = distributed.rank() * count
        return StreamEpoch(self._feeds, self._secret(), request, count, self._hello(), first, self._limit_s,
                           self._pins(), self._prefetch_bytes)  # fmt: skip

    def _stream_steps(self, shards: StreamShards, batches: Iterator[Fetched]) -> Iterator[Step]:
        number, position = self.epoch, self._position
        for fetched in batches:
            position += (self.batch_size or 1) * self.ranks
            yield fetched.batch, functools.partial(self._take, fetched, number, position, False, shards.step_made)

    def end_epoch(self, epoch: int) -> None:
        """Note that an iteration has had all batches of this epoch."""
        self._whole = self._whole or (self.epoch, self.begun) == (epoch, True)

    def _take(self, fetched: Fetched, epoch: int, position: int, whole: bool, made: Callable[[], None] | None = None
              ) -> None:  # fmt: skip
        """Note that a batch is handed out; an iteration over an earlier epoch leaves the loader where it is."""
        global _batches_taken
        if (self.epoch, self.begun) == (epoch, True):
            self._position, self._whole = position, whole
            if made:
                made()
        _batches_taken += 1
        self.skipped += log_skipped(fetched.skipped, self.skipped)


_open: weakref.WeakValueDictionary[int, _Iteration] = weakref.WeakValueDictionary()
os.register_at_fork(after_in_child=_open.clear)


class _Iteration(Iterator[Any]):
    """One iteration over a loader: with a length, and without an end where there was an error.

    A script may catch what `next` raises, and go on. The batches after that one cannot be had, and that they are
    missing must not look like the end of the epoch: then the process ends.
    """

    def __init__(self, loader: DataLoader, steps: Iterator[Step], source: Any) -> None:
        self._loader, self._steps, self._source, self._epoch = loader, steps, source, loader.epoch
        self._error: Exception | None = None
        _open[id(self)] = self

    def __next__(self) -> Any:
        if self._error is not None:
            said = str(self._error).partition("\n")[0]
            raise SystemExit(
                "the script went on after its loader had raised (on_error='skip' leaves out samples that raise): "
                f"{said}"
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

    def close(self) -> None:
        """Give up what is left of the epoch."""
        if close := getattr(self._steps, "close", None):
            close()
        self._source.close()

    def __del__(self) -> None:
        if sys is not None and not sys.is_finalizing():
            self.close()


def _plain_attributes(dataset: Any) -> dict[str, Any]:
    """Return numbers, texts and flags, and which transform it is; nothing of a dataset that has no `__dict__`."""
    held = getattr(dataset, "__dict__", {})
    plain = {name: each for name, each in held.items() if type(each) in (bool, int, float, str, type(None))}
    return plain | {name: id(each) for name, each in held.items() if "transform" in name}


def _check(is_stream: bool, on_error: str, shards: int, prefetch_bytes: int, torchs: dict[str, Any]) -> None:
    """Raise `InputError` for arguments that torch does not have, or that mean nothing here."""
    if on_error not in ON_ERROR:
        raise InputError(f"on_error is {on_error!r}; expected one of {', '.join(ON_ERROR)}")
    if shards and not is_stream:
        raise InputError("shards is for an IterableDataset; a map-style dataset needs none")
    if is_stream and on_error == "skip":
        raise InputError("on_error='skip' needs a map-style dataset: an iterator that has raised is over")
    if prefetch_bytes < 1:
        raise InputError(f"prefetch_bytes is {prefetch_bytes}; expected a number of bytes, at least 1")
    if torchs.pop("in_order", True) is False:
        raise InputError("in_order=False is not supported: batches come in the order that a resume relies on")
    if torchs.get("pin_memory_device"):
        raise InputError("pin_memory_device is not supported: use pin_memory=True or device=")


@atexit.register
def _close_all() -> None:
    """Close iterations that the script has left open: a thread that is in torch when Python ends aborts the process."""
    for reference in _open.valuerefs():  # at once: a thread of the script may still open others
        with contextlib.suppress(Exception):
            if (each := reference()) is not None:
                each.close()
