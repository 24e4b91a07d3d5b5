"""What a sampler of the script's yields: all of it, or where no end is in sight as much as training comes to."""

from __future__ import annotations

import collections
import itertools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from headrace import progress

ENDLESS = sys.maxsize
MOST_AT_ONCE = 1 << 22
"""Of a sampler that says how many it yields; of more it is drawn by and by."""
_LEAST_AT_ONCE = 1 << 16
_MORE_THAN_SAID = 64
"""A sampler that yields so many more than twice its length, or its dataset's, has no end."""
_CHUNK = 1 << 12
"""Samples that are drawn in one go, and more in the batch that they end with."""
_chunks = 0
progress.add_counter(lambda: _chunks)


def drawn_from(
    sampler: Any,
    count: int | None,
    dataset_size: int,
    aside: Callable[[], AbstractContextManager[None]],
    samples_of: Callable[[Any], int],
) -> Sequence[Any]:
    """All that a sampler yields, in its order, or `Drawn` where that is endless or very much.

    Args:
        count: how many it says there are; None: it does not say.
        dataset_size: samples; a sampler that yields many times as many has no end in sight.
        aside: in which it draws, with what generators it has there.
        samples_of: how many samples one that it yields stands for; raises what is wrong with it.
    """
    with aside():
        ahead = iter(sampler)
        if count is not None and count <= MOST_AT_ONCE:  # all, even where that is more than its length
            most = 2 * count + _MORE_THAN_SAID
            drawn = list(itertools.islice(ahead, most))
            drawn = drawn if len(drawn) < most else drawn[:count]
            for each in drawn:
                samples_of(each)
            return drawn
        most = min(max(2 * dataset_size + _MORE_THAN_SAID, _LEAST_AT_ONCE), MOST_AT_ONCE)
        first = _take(ahead, _CHUNK if count else most, samples_of)
        following = list(itertools.islice(ahead, 1))
    if not following:
        return first
    return Drawn(first, itertools.chain(following, ahead), count or ENDLESS, aside, samples_of)


def _take(ahead: Iterator[Any], samples: int, samples_of: Callable[[Any], int]) -> list[Any]:
    """As many as stand for so many samples, or all that there are."""
    global _chunks
    taken, held = [], 0
    for each in ahead:
        taken.append(each)
        held += samples_of(each)
        if held >= samples:
            break
    _chunks += 1
    return taken


class Drawn(Sequence[Any]):
    """A part of what a sampler yields. The thread that takes batches draws on, with `draw`; others only read.

    Iterating over it gives the part that is held.
    """

    def __init__(
        self,
        held: list[Any],
        ahead: Iterator[Any],
        count: int,
        aside: Callable[[], AbstractContextManager[None]],
        samples_of: Callable[[Any], int],
    ) -> None:
        self._held, self._ahead, self._count, self._aside, self._samples_of = held, ahead, count, aside, samples_of
        self._from = 0
        self._kept: dict[int, Any] = {}
        self._lock = threading.Lock()
        self._ended = False
        self.heard: Callable[[list[Any]], None] = _nobody
        """Told of each part that is drawn from now on."""

    def __len__(self) -> int:
        """What the sampler says; of one without a length `ENDLESS`, until its end has come."""
        return self._count

    @property
    def end(self) -> int:
        """The first position that is not drawn yet."""
        return self._from + len(self._held)

    def draw(self, start: int, end: int, keep: range) -> None:
        """Positions from `start` to before `end`. Those before, but for those to `keep`, are not asked for any more."""
        while self.end < min(end, self._count):
            with self._aside():
                more = _take(self._ahead, _CHUNK, self._samples_of)[: self._count - self.end]
            with self._lock:
                self._held += more
                if not more:
                    self._count = self.end
            self.heard(more)
            self._forget(min(start, self.end), keep)
        self._forget(min(start, self.end), keep)
        if self.end == self._count and not self._ended:  # what a sampler does after its last one, for the next epoch
            self._ended = True
            with self._aside():
                collections.deque(itertools.islice(self._ahead, _MORE_THAN_SAID), 0)

    def _forget(self, before: int, keep: range) -> None:
        if before - self._from < max(_CHUNK, len(self._held) // 2):
            return
        with self._lock:
            self._kept |= {each: self._at(each) for each in keep if self._from <= each < before}
            del self._held[: before - self._from]
            self._from = before

    def __getitem__(self, position: Any) -> Any:
        with self._lock:
            return self._at(position)

    def _at(self, position: int) -> Any:
        if position in self._kept:
            return self._kept[position]
        # One that is forgotten is of a batch that nobody waits for any more.
        return self._held[max(position - self._from, 0)]

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._held))


def _nobody(more: list[Any]) -> None:
    pass
