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
"""A sampler that says it yields more is drawn as training goes on."""
_MORE_THAN_SAID = 64
"""A sampler that yields so many more than twice its length, or its dataset's, has no end in sight."""
_CHUNK = 1 << 10
"""Samples that are drawn in one go, and more in the batch that they end with."""
_chunks = 0
progress.add_counter(lambda: _chunks)


def drawn_from(
    sampler: Any,
    count: int | None,
    dataset_size: int,
    aside: Callable[[], AbstractContextManager[None]],
    plain: Callable[[Any], tuple[Any, int]],
    draws_on: Callable[[], None],
) -> Sequence[Any]:
    """All that a sampler yields, in its order, or `Drawn` where that is endless or very much.

    Args:
        count: how many it says there are, which some say of endless ones too; None: it does not say.
        dataset_size: samples.
        aside: in which it draws, with what generators it has there.
        plain: of one that it yields a copy, and how many samples it stands for; raises what is wrong with it.
        draws_on: told before each part but the first.
    """
    with aside():
        ahead = iter(sampler)
        if count is not None and count <= MOST_AT_ONCE:
            first = [plain(each)[0] for each in itertools.islice(ahead, 2 * count + _MORE_THAN_SAID)]
            count = None  # it may be longer than it says
        else:
            most = _CHUNK if count else min(2 * dataset_size + _MORE_THAN_SAID, MOST_AT_ONCE)
            first = _take(ahead, most, plain)
        following = list(itertools.islice(ahead, 1))
    if not following:
        return first
    return Drawn(first, itertools.chain(following, ahead), count or ENDLESS, aside, plain, draws_on)


def _take(ahead: Iterator[Any], samples: int, plain: Callable[[Any], tuple[Any, int]]) -> list[Any]:
    """As many as stand for so many samples, or all that there are."""
    global _chunks
    taken, held = [], 0
    for each in ahead:
        copy, stands_for = plain(each)
        taken.append(copy)
        held += stands_for
        if held >= samples:
            break
    _chunks += 1
    return taken


class Drawn(Sequence[Any]):
    """A part of what a sampler yields. The thread that takes batches draws on, with `draw`; others only read."""

    def __init__(
        self,
        held: list[Any],
        ahead: Iterator[Any],
        count: int,
        aside: Callable[[], AbstractContextManager[None]],
        plain: Callable[[Any], tuple[Any, int]],
        draws_on: Callable[[], None],
    ) -> None:
        self._draws_on = draws_on
        self._held, self._ahead, self._count, self._aside, self._plain = held, ahead, count, aside, plain
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
            self._draws_on()
            with self._aside():
                more = _take(self._ahead, _CHUNK, self._plain)[: self._count - self.end]
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

    def held(self) -> list[Any]:
        """The part that is drawn and not forgotten."""
        return list(self._held)


def _nobody(more: list[Any]) -> None:
    pass
