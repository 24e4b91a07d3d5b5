"""Which elements of an endless, shuffled stream have been trained on. No TensorFlow, no files: numbers in, numbers out.

The stream is a sequence of positions, 0, 1, 2, …; each stands for a unit (a file, or a block of indices) and every
epoch has each unit once. An element's tag is `position << 32 | place in the unit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from headrace.errors import InputError

PLACE_BITS = 32
_PLACE_MASK = (1 << PLACE_BITS) - 1
Ranges = list[list[int]]
"""Half-open, ascending, apart from each other."""


class Ledger:
    """The positions that are done, and the elements that are done of those that are not.

    Args:
        counts: elements of each unit.
        order: the units of an epoch in the order of their positions.
    """

    def __init__(self, counts: Sequence[int], order: Callable[[int], np.ndarray]) -> None:
        self._counts = np.asarray(counts, np.int64)
        self._order = order
        self._orders: dict[int, np.ndarray] = {}
        self._done: set[int] = set()  # positions beyond the mark
        self._begun: dict[int, np.ndarray] = {}  # position: which of its elements are done
        self.mark = 0
        """All positions before this one are done."""

    def add(self, tags: np.ndarray) -> None:
        """These elements have been trained on."""
        positions = tags >> PLACE_BITS
        for position in np.unique(positions):
            if position < self.mark or int(position) in self._done:
                continue
            places = tags[positions == position] & _PLACE_MASK
            done = self._begun.setdefault(int(position), np.zeros(self._count(int(position)), bool))
            done[places] = True
            if done.all():
                del self._begun[int(position)]
                self._done.add(int(position))
        while self.mark in self._done:
            self._done.remove(self.mark)
            self.mark += 1

    @property
    def begun_elements(self) -> int:
        """Done elements at and beyond the mark: those that a stream which starts there must leave out."""
        whole = sum(self._count(position) for position in self._done)
        return whole + sum(int(done.sum()) for done in self._begun.values())

    def done_positions(self) -> np.ndarray:
        """Done positions beyond the mark, ascending."""
        return np.asarray(sorted(self._done), np.int64)

    def done_tags(self) -> np.ndarray:
        """Done elements of positions that are not done, ascending."""
        tags = [(position << PLACE_BITS) + np.flatnonzero(done) for position, done in sorted(self._begun.items())]
        return np.concatenate(tags) if tags else np.zeros(0, np.int64)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON has it."""
        begun = {str(position): _ranges(np.flatnonzero(done)) for position, done in sorted(self._begun.items())}
        return {"mark": self.mark, "done": _ranges(self.done_positions()), "begun": begun}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what a checkpoint kept. Raises `InputError` when it cannot be of this dataset."""
        try:
            self.mark = int(state["mark"])
            self._done = {int(position) for position in _numbers(state["done"])}
            self._begun = {}
            for position, ranges in state["begun"].items():
                done = np.zeros(self._count(int(position)), bool)
                done[_numbers(ranges)] = True
                self._begun[int(position)] = done
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise InputError(
                f"the checkpoint's data ledger cannot be read ({error!r}); delete that checkpoint"
            ) from error

    def _count(self, position: int) -> int:
        epoch, place = divmod(position, len(self._counts))
        if epoch not in self._orders:
            self._orders = {key: value for key, value in self._orders.items() if key >= epoch - 1}
            self._orders[epoch] = self._order(epoch)
        return int(self._counts[self._orders[epoch][place]])


def _ranges(numbers: Iterable[int]) -> Ranges:
    found: Ranges = []
    for number in map(int, numbers):
        if found and found[-1][1] == number:
            found[-1][1] += 1
        else:
            found.append([number, number + 1])
    return found


def _numbers(ranges: Ranges) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int64), *(np.arange(first, end) for first, end in ranges)]).astype(np.int64)
