"""A record of which elements of an endless, shuffled stream have been trained on. It uses no TensorFlow and no files.

The stream is a sequence of positions 0, 1, 2, … Each stands for a unit (a file, or a block of indices), and every epoch
has each unit once. An element's tag is `position << 32 | place in the unit`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InputError

PLACE_BITS = 32
LAG_EPOCHS, LAG_POSITIONS = 2, 1024
"""Limits, in epochs and in positions, on how far a unit may lag behind the newest unit. Beyond both limits, the unit's
missing elements count as skipped. Lags are normal: workers hold several units, and some workers are slow."""
_PLACE_MASK = (1 << PLACE_BITS) - 1
Ranges = list[list[int]]
"""Sorted integers, as half-open ranges `[first, end)` with gaps between them."""


class Ledger:
    """A record of the elements of a stream that have been trained on. Elements belong to units, such as files.

    A unit is complete if all its elements have been trained on. The ledger stores the positions of complete units.
    For other units, the ledger stores each element that has been trained on. Some elements never come: a filter drops
    them, or a worker is lost. A missing element counts as skipped once elements of much later units have come.

    Args:
        counts: number of elements of each unit.
        order: returns the units of an epoch, in the order of their positions.
    """

    def __init__(self, counts: Sequence[int], order: Callable[[int], NDArray[Any]]) -> None:
        self._counts = np.asarray(counts, np.int64)
        self._order = order
        self._orders: dict[int, NDArray[Any]] = {}
        self._done: set[int] = set()  # positions beyond the mark
        self._begun: dict[int, NDArray[Any]] = {}  # by position: which elements of its unit are done
        self._newest = 0
        self.mark = 0
        """First position that is not done. All earlier positions are done or skipped."""
        self.skipped = 0
        """Number of elements that the ledger counts as missing for good."""

    def add(self, tags: NDArray[Any]) -> None:
        """Record the elements with these tags as trained."""
        tags = np.sort(tags)
        for of_one in np.split(tags, np.flatnonzero(np.diff(tags >> PLACE_BITS)) + 1) if len(tags) else []:
            position = int(of_one[0] >> PLACE_BITS)
            self._newest = max(self._newest, position)
            if position < self.mark or position in self._done:
                continue
            if position not in self._begun:
                self._begun[position] = np.zeros(self._count(position), bool)
            self._begun[position][of_one & _PLACE_MASK] = True
            if self._begun[position].all():
                del self._begun[position]
                self._done.add(position)
        self._advance()

    def _advance(self) -> None:
        oldest = self._newest - max(LAG_EPOCHS * len(self._counts), LAG_POSITIONS)
        while self.mark in self._done or self.mark < oldest:
            if self.mark not in self._done:
                done = self._begun.pop(self.mark, np.zeros(0, bool))
                self.skipped += self._count(self.mark) - int(done.sum())
            self._done.discard(self.mark)
            self.mark += 1

    @property
    def begun_elements(self) -> int:
        """Number of trained elements at or after `mark` (first incomplete position). A resumed stream omits these."""
        whole = sum(self._count(position) for position in self._done)
        return whole + sum(int(done.sum()) for done in self._begun.values())

    def done_positions(self) -> NDArray[Any]:
        """Return the positions of complete units after `mark`, in ascending order."""
        return np.asarray(sorted(self._done), np.int64)

    def done_tags(self) -> NDArray[Any]:
        """Return the tags of trained elements in incomplete units, in ascending order."""
        tags = [(position << PLACE_BITS) + np.flatnonzero(done) for position, done in sorted(self._begun.items())]
        return np.concatenate(tags) if tags else np.zeros(0, np.int64)

    def state(self) -> dict[str, Any]:
        """Return the ledger's state for a checkpoint, as JSON types."""
        begun = {str(position): _ranges(np.flatnonzero(done)) for position, done in sorted(self._begun.items())}
        return {"mark": self.mark, "skipped": self.skipped, "done": _ranges(self.done_positions()), "begun": begun}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load the state from a checkpoint. Raises `InputError` if it cannot belong to this dataset."""
        try:
            self.mark, self.skipped = int(state["mark"]), int(state["skipped"])
            self._done = {int(position) for position in _numbers(state["done"])}
            self._begun = {}
            for position, ranges in state["begun"].items():
                done = np.zeros(self._count(int(position)), bool)
                done[_numbers(ranges)] = True
                self._begun[int(position)] = done
            self._newest = max([self.mark, *self._done, *self._begun])
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


def _ranges(numbers: NDArray[Any]) -> Ranges:
    parts = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    return [[int(part[0]), int(part[-1]) + 1] for part in parts if len(part)]


def _numbers(ranges: Ranges) -> NDArray[Any]:
    parts = [np.arange(first, end, dtype=np.int64) for first, end in ranges]
    return np.concatenate([np.zeros(0, np.int64), *parts])
