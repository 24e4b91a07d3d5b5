"""The fetcher of an `IterableDataset`. It makes the batches of one shard in order.

To the dataset, a shard looks like a worker process of torch's loader: it iterates over a copy of the dataset, and
`get_worker_info` returns the shard's number and the number of shards. Shards may be made on any number of hosts.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import _utils

from headrace.errors import InputError
from headrace.torch.fetch.map_fetcher import Fetched, SampleError, describe
from headrace.torch.fetch.rng import SHARD, SHARD_BEGINS, SHARD_COLLATE, begin_epoch, sample_seed, seed_all

MOST_SHARDS = 1 << 16
NOT_SHARED = (
    "does not ask for its shard, so each of the {shards} shards would have all samples. In __iter__, call "
    "torch.utils.data.get_worker_info() and yield this shard's part (files[info.id::info.num_workers]); or use a "
    "map-style dataset"
)


@dataclass(frozen=True)
class ShardRequest:
    """Request for batch `number`, counted from 0, of a shard in an epoch.

    Attributes:
        batch_size: number of samples in a batch; 0: there is no batching, and each sample counts as a batch.
        begins_at: number of the batch at which the dataset continues from `state`. It is ignored if `state` is None.
        state: argument for the dataset's own `load_state_dict`; None: iterate over the shard from its beginning.
    """

    seed: int
    epoch: int
    shard: int
    shards: int
    number: int
    batch_size: int
    drop_last: bool
    begins_at: int = 0
    state: Any = None

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> ShardRequest:
        """Read a request from a message. Raises `InputError` if the message is not a valid request."""
        try:
            return cls(**record)
        except TypeError as error:
            raise InputError(f"not a request for a batch of a shard: {error}") from error


class WorkerInfo(_utils.worker.WorkerInfo):
    """`get_worker_info`'s result in a shard. `asked` becomes True when `id`, `num_workers` or `dataset` is read."""

    asked = False

    def __getattribute__(self, name: str) -> Any:
        if name in ("id", "num_workers", "dataset"):
            object.__setattr__(self, "asked", True)  # torch's class is frozen
        return super().__getattribute__(name)


class IterableFetcher:
    """Makes, in order, the batches of one shard of the loader's dataset."""

    def __init__(self, loader: Any) -> None:
        self._dataset, self._collate_fn = loader.dataset, loader.collate_fn
        self._worker_init_fn, self._num_workers = loader.worker_init_fn, loader.num_workers
        self._iterates: tuple[int, ...] | None = None
        self._copy: Any = None
        self._samples: Iterator[Any] = iter(())
        self._next = 0
        self.at: Any = None
        """The sample that is being made, as text for messages; None between samples."""

    def fetch(self, request: ShardRequest) -> Fetched:
        """Make a batch. Raises `SampleError`; raises `InputError` if the dataset ignores `get_worker_info`."""
        shard = (request.seed, request.epoch, request.shard, request.shards, request.batch_size, request.drop_last)
        size = request.batch_size or 1
        if shard != self._iterates or request.number < self._next:
            self._iterates = None  # stays None if _begin fails
            self._next = 0 if request.state is None else request.begins_at
            self._samples = self._begin(request, self._next * size)
            self._iterates = shard
        for _ in itertools.islice(self._samples, size * (request.number - self._next)):
            pass  # batches that were trained on before a resume
        self._next = request.number + 1
        samples = list(itertools.islice(self._samples, size))
        if not samples or (request.drop_last and len(samples) < size):
            self._samples = iter(())
            return Fetched(None, over=True)
        seed_all(sample_seed(request.seed, request.epoch, request.number, SHARD_COLLATE + request.shard))
        try:
            return Fetched(self._collate_fn(samples if request.batch_size else samples[0]), state=self._state())
        except Exception as error:
            what = f"collate_fn for batch {request.number} of shard {request.shard}"
            raise SampleError(describe(error, what)) from error

    def _state(self) -> Any:
        """Return the dataset's state; None if it has none, or if JSON cannot represent it."""
        if not _has_state(self._copy):
            return None
        state = self._copy.state_dict()
        try:
            return json.loads(json.dumps(state))
        except (TypeError, ValueError):
            return None

    def _begin(self, request: ShardRequest, first: int) -> Iterator[Any]:
        dataset = self._copy = _copied(self._dataset)  # iteration may change it, and other shards must not see that
        # As in torch, `seed - id` is the same in all shards.
        seed = sample_seed(request.seed, request.epoch, 0, SHARD) % (1 << 62) + request.shard
        told = self._num_workers or request.shards > 1  # without workers, torch's get_worker_info returns None
        info = WorkerInfo(id=request.shard, num_workers=request.shards, seed=seed, dataset=dataset) if told else None
        begin_epoch(dataset, request.seed, request.epoch)
        if info and self._worker_init_fn:
            seed_all(seed)
            set_worker_info(info)
            self._worker_init_fn(request.shard)
        if request.state is not None and _has_state(dataset):
            dataset.load_state_dict(copy.deepcopy(request.state))
        return self._iterate(dataset, info, request, first)

    def _iterate(self, dataset: Any, info: WorkerInfo | None, request: ShardRequest, first: int) -> Iterator[Any]:
        # All shards begin with the same draws: if each of them shuffles a list of files, all get the same order.
        begin = sample_seed(request.seed, request.epoch, 0, SHARD_BEGINS)
        samples: Iterator[Any] | None = None
        for number in itertools.count(first):
            place = SHARD + request.shard
            seed = sample_seed(request.seed, request.epoch, number, place) if number else begin
            seed_all(seed)
            self.at = f"{number} of shard {request.shard}"
            set_worker_info(info)
            try:
                if samples is None:
                    seed_all(begin)
                    samples = iter(dataset)
                    seed_all(seed)  # a generator function runs only when its first sample is requested
                sample = next(samples, _OVER)
            except Exception as error:
                raise SampleError(describe(error, f"sample {number} of shard {request.shard}")) from error
            finally:
                self.at = None
            if request.shards > 1 and not (info and info.asked):
                raise InputError(f"{type(self._dataset).__name__} {NOT_SHARED.format(shards=request.shards)}")
            if sample is _OVER:
                return
            yield sample


def set_worker_info(info: Any) -> None:
    """Set what `get_worker_info` returns in this process, as torch's own worker processes do."""
    _utils.worker._worker_info = info


def _has_state(dataset: Any) -> bool:
    return all(callable(getattr(dataset, name, None)) for name in ("state_dict", "load_state_dict"))


def _copied(dataset: Any) -> Any:
    """Return a shallow copy of a dataset. Copy lists and one-element shared tensors too: iteration may change them."""
    try:
        copied = copy.copy(dataset)
    except RecursionError:  # a wrapper whose __getattr__ reads an attribute that an empty copy lacks
        copied = object.__new__(type(dataset))
        copied.__dict__.update(vars(dataset))
    held = getattr(copied, "__dict__", {})
    for name, each in list(held.items()):
        if type(each) is list:
            held[name] = list(each)
        # Hugging Face's epoch is a tensor in shared memory: writing it would change the script's dataset.
        elif isinstance(each, torch.Tensor) and each.numel() == 1 and each.is_shared():
            held[name] = each.clone()
    return copied


_OVER = object()
