"""Draw an epoch's indices from a sampler, which is torch's or the script's own. All ranks get the same order.

Each rank draws all indices, with the same seed: before the epoch, or during it if the sampler is very long or endless.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import BatchSampler, DistributedSampler

from headrace.errors import InputError
from headrace.rank import liveness
from headrace.torch.fetch.map_fetcher import plain_index
from headrace.torch.fetch.rng import GLOBAL, kept, seed_all

ENDLESS = sys.maxsize
MOST_AT_ONCE = 1 << 22
"""If a sampler's length is at most this, its indices are drawn at once. Otherwise they are drawn during training."""
_MORE_THAN_SAID = 64
"""A sampler counts as endless if it yields more than 2 × its length + this value. If a sampler has no length, the
length of the dataset is used instead."""
_CHUNK = 1 << 10
"""Number of samples that are drawn at once from an endless sampler."""


def is_distributed(sampler: Any, world: int, dataset: Any) -> bool:
    """Return whether this is torch's own DistributedSampler, for the whole dataset and all ranks."""
    known = isinstance(sampler, DistributedSampler) and type(sampler).__iter__ is DistributedSampler.__iter__
    return (
        known and sampler.num_replicas == world and hasattr(dataset, "__len__") and len(sampler.dataset) == len(dataset)
    )


def without_batch_sampler(
    dataset: Any, world: int, batch_size: int | None, shuffle: Any, sampler: Any, batch_sampler: Any, drop_last: bool
) -> tuple[int | None, Any, Any, bool]:
    """Return the batch size, sampler, batch sampler and `drop_last` to use.

    A BatchSampler over a DistributedSampler is replaced by its batch size and the DistributedSampler. The loader makes
    the same batches from these. Arguments that exclude each other are returned unchanged, since torch refuses them.
    """
    unwrap = type(batch_sampler) is BatchSampler and is_distributed(batch_sampler.sampler, world, dataset)
    if unwrap and (batch_size, bool(shuffle), sampler, drop_last) == (1, False, None, False):
        return batch_sampler.batch_size, batch_sampler.sampler, None, batch_sampler.drop_last
    return batch_size, sampler, batch_sampler, drop_last


def refuse_dealing(sampler: Any, world: int, dataset: Any) -> None:
    """Raise `InputError` for a sampler that divides samples among ranks, since the loader would divide them again."""
    for each in () if is_distributed(sampler, world, dataset) else nested(sampler):
        if (getattr(each, "num_replicas", 1) or 1) > 1:
            raise InputError(
                f"{type(each).__name__} divides samples among {each.num_replicas} ranks, but the loader already does "
                f"so among {world} ranks. Use a sampler of the whole dataset, such as RandomSampler, or torch's "
                "DistributedSampler over all ranks. Or set shard_by_rank=False: each rank takes what its sampler yields"
            )


def nested(sampler: Any, depth: int = 0) -> Iterator[Any]:
    """Yield a sampler and the samplers that it wraps."""
    if sampler is not None and depth < 5:
        yield sampler
        for name in ("sampler", "batch_sampler"):
            yield from nested(getattr(sampler, name, None), depth + 1)


def drawn(sampler: Any, of_batches: bool, dataset: Any, seed: int, epoch: int) -> Sequence[Any]:
    """Return all indices that a sampler yields, or a `LazyOrder` if the sampler is endless or very long.

    Raises `InputError` if the sampler yields an object that is not an index.
    """
    drawing = _Drawing(sampler, of_batches, seed, epoch)
    count = _length(sampler)
    if count is not None and count <= MOST_AT_ONCE:
        first = drawing.take(positions=2 * count + _MORE_THAN_SAID)
        count = None  # it may yield more than its length
    else:
        few = 2 * (_length(dataset) or 0) + _MORE_THAN_SAID
        first = drawing.take(samples=_CHUNK if count else min(few, MOST_AT_ONCE))
    following = drawing.take(positions=1)
    return LazyOrder(first + following, drawing, count or ENDLESS) if following else first


class _Drawing:
    """An iterator over a sampler. It draws indices in pieces, and keeps its own random state."""

    def __init__(self, sampler: Any, of_batches: bool, seed: int, epoch: int) -> None:
        generators = [getattr(each, "generator", None) for each in nested(sampler)]
        own = [each for each in generators if isinstance(each, torch.Generator)]
        self._name, self._of_batches = type(sampler).__name__, of_batches
        self._generators, self._states = (*GLOBAL, *own), list[Any]()
        with kept(self._generators, self._states):
            seed_all(seed)
            for generator in own:
                generator.manual_seed(seed)
            for each in nested(sampler):
                if callable(set_epoch := getattr(each, "set_epoch", None)):
                    set_epoch(epoch)
            self._ahead = iter(sampler)

    def take(self, positions: int = ENDLESS, samples: int = ENDLESS) -> list[Any]:
        """Return up to `positions` more indices or batches. Stop at `samples` samples, or when the sampler ends."""
        taken: list[Any] = []
        held = 0
        with kept(self._generators, self._states):
            while len(taken) < positions and held < samples:
                try:
                    each = next(self._ahead)
                except StopIteration:
                    break
                taken.append(self._plain(each))
                held += len(taken[-1]) if self._of_batches else 1
        liveness.note_progress()
        return taken

    def _plain(self, drawn: Any) -> Any:
        """Copy an index or batch, since samplers may reuse a list. Raises `InputError` if it is neither, or empty."""
        if type(drawn) is int and not self._of_batches:
            return drawn
        try:
            plain = [plain_index(each) for each in drawn] if self._of_batches else plain_index(drawn)
        except (TypeError, AttributeError):
            raise InputError(
                f"{self._name} yields {drawn!r:.80}. An index must be an integer, a string, or a plain tuple or list "
                "of numbers and strings"
            ) from None
        if self._of_batches and not plain:
            raise InputError(f"{self._name} yields a batch without samples: have the sampler skip such batches")
        return plain


def _length(of: Any) -> int | None:
    try:
        return len(of)
    except (TypeError, NotImplementedError, OverflowError):
        return None


class LazyOrder(Sequence[Any]):
    """A window of the indices that a long or endless sampler yields.

    Only the thread that takes batches calls `draw`; other threads read.
    """

    def __init__(self, first: list[Any], drawing: _Drawing, count: int) -> None:
        self._drawing, self._count = drawing, count
        self._window = 0, first  # first position held, and the indices; replaced at once, since other threads read both
        self._kept: dict[int, Any] = {}

    def __len__(self) -> int:
        """Return the number of indices that the sampler yields, or `ENDLESS` while this number is not known."""
        return self._count

    @property
    def end(self) -> int:
        """First position whose index is not drawn yet."""
        first, held = self._window
        return first + len(held)

    def draw(self, start: int, end: int, keep: range) -> None:
        """Draw the indices up to position `end`. Drop indices before position `start`, except positions in `keep`."""
        while self.end < min(end, self._count):
            more = self._drawing.take(samples=_CHUNK)[: self._count - self.end]
            self._window[1].extend(more)
            if not more:
                self._count = self.end
            self._forget(min(start, self.end), keep)

    def _forget(self, before: int, keep: range) -> None:
        first, held = self._window
        if before - first >= max(_CHUNK, len(held) // 2):
            self._kept |= {each: self[each] for each in keep if first <= each < before}
            self._window = before, held[before - first :]

    def window(self) -> list[Any]:
        """Return the indices that are drawn and still held, in the order of their positions."""
        return list(self._window[1])

    def __getitem__(self, position: Any) -> Any:
        first, held = self._window
        # A forgotten position belongs to a batch that the rank no longer waits for.
        return self._kept[position] if position in self._kept else held[max(position - first, 0)]


class RankBatchSampler(BatchSampler):
    """This rank's batches as a `batch_sampler`, from which other libraries can build their own loader.

    After a resume, Hugging Face's Trainer calls Accelerate's `skip_first_batches`, which builds a loader from the
    dataset and the batch sampler. With torch's batch sampler, that loader would take all samples on each rank.
    """

    def __init__(self, loader: Any, torchs: BatchSampler) -> None:
        super().__init__(torchs.sampler, torchs.batch_size, torchs.drop_last)
        self._loader = loader

    def __iter__(self) -> Iterator[list[Any]]:
        """Yield the indices of the loader's next epoch, batch by batch. Does not change the loader's position."""
        for batch in self._loader.next_indices():
            liveness.note_progress()  # another loader makes the batch, and reports no progress
            yield batch

    def set_epoch(self, epoch: int) -> None:
        """Set the loader's epoch. Hugging Face's Trainer calls this."""
        self._loader.set_epoch(epoch)

    def __len__(self) -> int:
        return int(self._loader.planner.steps())  # not len(loader): a subclass may define that as len(batch_sampler)
