"""What a sampler of the script's yields: all of it, or where no end is in sight as much as training comes to."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headrace.torch.draws import Apart

ENDLESS = sys.maxsize
MOST_AT_ONCE = 1 << 22
"""Of a sampler that says how many it yields; of more it is drawn by and by."""
_LEAST_AT_ONCE = 1 << 16
_MORE_THAN_SAID = 64
"""A sampler that yields so many more than twice its length, or its dataset's, has no end."""
_CHUNK = 1 << 12


def drawn_from(
    sampler: Any, count: int | None, dataset_size: int, apart: Apart, check: Callable[[Any], int]
) -> Sequence[Any]:
    """All that a sampler yields, in its order, or `Drawn` where that is endless or very much.

    Args:
        sampler: its generators have been seeded within `apart`.
        count: how many it says there are; None: it does not say.
        check: of one that it yields; gives the number of its samples.
        apart: in which the sampler draws.
    """
    with apart.drawing():
        ahead = iter(sampler)
        if count is not None and count <= MOST_AT_ONCE:  # all, even where that is more than its length
            most = 2 * count + _MORE_THAN_SAID
            drawn = list(itertools.islice(ahead, most))
            drawn = drawn if len(drawn) < most else drawn[:count]
            for each in drawn:
                check(each)
            return drawn
        most = max(2 * dataset_size + _MORE_THAN_SAID, _LEAST_AT_ONCE) if count is None else _CHUNK
        drawn, samples = [], 0
        for each in ahead:
            drawn.append(each)
            samples += check(each)
            if samples > most:
                return Drawn(drawn, ahead, ENDLESS if count is None else count, apart, check)
        return drawn


class Drawn(Sequence[Any]):
    """A part of what a sampler yields. The thread that made it draws on, with `draw`; others only read what is drawn.

    To iterate over it gives the part that is held.
    """

    def __init__(
        self, held: list[Any], ahead: Iterator[Any], count: int, apart: Apart, check: Callable[[Any], int]
    ) -> None:
        self._held, self._ahead, self._count, self._apart, self._check = held, ahead, count, apart, check
        self._from = 0
        self._kept: dict[int, Any] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """`ENDLESS` until the end has come."""
        return self._count

    @property
    def end(self) -> int:
        """The first position that is not drawn yet."""
        return self._from + len(self._held)

    def draw(self, start: int, end: int, keep: range) -> None:
        """Positions from `start` to before `end`. Those before, but for those to `keep`, are not asked for any more."""
        while self.end < min(end, self._count):
            with self._apart.drawing():
                more = list(itertools.islice(self._ahead, min(_CHUNK, self._count - self.end)))
                for each in more:
                    self._check(each)
            with self._lock:
                self._held += more
                if not more:
                    self._count = self.end
            self._forget(min(start, self.end), keep)
        self._forget(min(start, self.end), keep)

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
