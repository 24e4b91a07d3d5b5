"""Makes the batches of one part of an `IterableDataset`'s epoch, one after another.

The parts are what torch's worker processes are to such a dataset: each iterates over a copy of it, in which
`torch.utils.data.get_worker_info` says which of how many this is. So what is written for torch's workers is shared
here, among any number of hosts.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import _utils

from headrace.errors import InputError
from headrace.torch.dataset_epochs import begin_epoch, told_within
from headrace.torch.fetch.map_fetcher import Made, SampleError, StreamOrder, told
from headrace.torch.fetch.rng import seed_all
from headrace.torch.sampling.epoch_plan import sample_seed

_BEGIN, _PART, _COLLATE = 1 << 43, 1 << 44, 1 << 45
"""Places that no sample of a map-style dataset has."""
NOT_SHARED = (
    "does not say which samples belong to which part: each of {parts} parts would have all of them. In __iter__, ask "
    "torch.utils.data.get_worker_info() for its id and num_workers and give each part its share "
    "(files[info.id::info.num_workers]); or give a map-style dataset"
)


class WorkerInfo:
    """What `get_worker_info` tells a dataset; knows whether anything asked for a share."""

    rng = None
    worker_method = "multiprocessing"

    def __init__(self, part: int, parts: int, seed: int, dataset: Any) -> None:
        self._part, self._parts, self.seed, self._dataset = part, parts, seed, dataset
        self.asked = False

    @property
    def id(self) -> int:
        self.asked = True
        return self._part

    @property
    def num_workers(self) -> int:
        self.asked = True
        return self._parts

    @property
    def dataset(self) -> Any:
        """A `worker_init_fn` that shares the samples writes the share into it."""
        self.asked = True
        return self._dataset


class StreamMaker:
    """The batches of one part, in their order.

    Args:
        num_workers: the loader's; without workers and parts `get_worker_info` tells nothing, as in torch.
    """

    def __init__(self, dataset: Any, collate_fn: Callable[[Any], Any], worker_init_fn: Callable[[int], None] | None,
                 num_workers: int) -> None:  # fmt: skip
        self._dataset, self._collate_fn = dataset, collate_fn
        self._worker_init_fn, self._num_workers = worker_init_fn, num_workers
        self._of: tuple[int, ...] | None = None
        self._samples: Iterator[Any] = iter(())
        self._next = 0
        self.at: Any = None
        """Which sample is being made, for people; None: none."""

    def make(self, order: StreamOrder) -> Made:
        """The batch. Raises `SampleError`, and `InputError` for a dataset that does not share its samples."""
        part = (order.seed, order.epoch, order.part, order.parts, order.batch_size, order.drop_last)
        if part != self._of or order.number < self._next:
            self._of = None  # should it not even begin
            self._samples = self._begun(order)
            self._of, self._next = part, 0
        size = order.batch_size or 1
        for _ in itertools.islice(self._samples, size * (order.number - self._next)):
            pass  # batches that were trained on before a resume
        self._next = order.number + 1
        samples = list(itertools.islice(self._samples, size))
        if not samples or (order.drop_last and len(samples) < size):
            self._samples = iter(())  # whatever number is asked for now: it is over
            return Made(None, over=True)
        seed_all(sample_seed(order.seed, order.epoch, order.number, _COLLATE + order.part))
        try:
            return Made(self._collate_fn(samples if order.batch_size else samples[0]))
        except Exception as error:
            raise SampleError(told(error, f"collate_fn, of batch {order.number} of part {order.part},")) from error

    def _begun(self, order: StreamOrder) -> Iterator[Any]:
        dataset = _copied(self._dataset)  # parts that share a process do not share what iteration changes
        # As in torch, `seed - id` is the same in all parts.
        seed = sample_seed(order.seed, order.epoch, 0, _PART) % (1 << 62) + order.part
        tells = self._num_workers or order.parts > 1
        info = WorkerInfo(order.part, order.parts, seed, dataset) if tells else None
        within = told_within(dataset)
        for each, told_it in itertools.zip_longest(within, order.told[: len(within)]):
            begin_epoch(each, order.seed, order.epoch, told_it)
        if info and self._worker_init_fn:
            seed_all(seed)
            tell(info)
            self._worker_init_fn(order.part)
        return self._iterated(dataset, info, order)

    def _iterated(self, dataset: Any, info: WorkerInfo | None, order: StreamOrder) -> Iterator[Any]:
        # All parts begin with the same draws, so that a list of files that each shuffles is the same in all.
        begin = sample_seed(order.seed, order.epoch, 0, _BEGIN)
        samples: Iterator[Any] | None = None
        for number in itertools.count():
            seed_all(sample_seed(order.seed, order.epoch, number, _PART + order.part) if number else begin)
            self.at = f"{number} of part {order.part}"
            tell(info)
            try:
                if samples is None:
                    samples = iter(dataset)
                    seed_all(begin)  # a generator begins when it is asked for its first sample
                sample = next(samples)
            except StopIteration:
                sample = _OVER
            except Exception as error:
                raise SampleError(told(error, f"sample {number} of part {order.part}")) from error
            finally:
                self.at = None
            if order.parts > 1 and not (info and info.asked):
                raise InputError(f"{type(self._dataset).__name__} {NOT_SHARED.format(parts=order.parts)}")
            if sample is _OVER:
                return
            yield sample


def _copied(dataset: Any) -> Any:
    """With lists of its own, which a dataset may shuffle where a part begins, and epochs that processes share."""
    try:
        copied = copy.copy(dataset)
    except RecursionError:  # a wrapper that looks for what it lacks in an object that an empty copy lacks too
        copied = object.__new__(type(dataset))
        copied.__dict__.update(vars(dataset))
    held = getattr(copied, "__dict__", {})
    own = {name: list(each) for name, each in held.items() if type(each) is list}
    # Hugging Face's epoch is written in place: this process would set it on the script's dataset.
    own |= {name: each.clone() for name, each in held.items() if _is_shared_number(each)}
    for name, each in own.items():
        copied.__dict__[name] = each
    return copied


def _is_shared_number(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1 and value.is_shared()


def stream_maker(loader: Any) -> StreamMaker:
    """What makes parts of this loader's dataset."""
    return StreamMaker(loader.dataset, loader.collate_fn, loader.worker_init_fn, loader.num_workers)


def tell(info: WorkerInfo | None) -> None:
    """From now on `get_worker_info` says this; threads of the dataset may ask at any time."""
    _utils.worker._worker_info = info  # type: ignore[assignment]


_OVER = object()
