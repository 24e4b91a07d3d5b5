"""The steps of a rank in one epoch, or in what is left of one, and the order of the batch of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from headrace.torch.drawn import Drawn
from headrace.torch.epoch_calls import Told
from headrace.torch.fetch.map_fetcher import Order
from headrace.torch.indices import plain_index
from headrace.torch.sampling.epoch_plan import Epoch

LEAST_AHEAD, MOST_AHEAD = 16, 256
"""Steps whose samples are drawn before they are made; between these, as many as were made."""
MOST_POSITIONS_AHEAD = 1 << 18


class EpochSteps:
    """Steps, from 0. Where the sampler has no end in sight they become known as training goes on.

    Args:
        indices: what the positions of the epoch stand for.
        of_batches: they are lists of samples.
        epoch: the positions of each step.
        number: of the epoch.
        told: what the script told its datasets.
    """

    def __init__(
        self, indices: Sequence[Any], of_batches: bool, epoch: Epoch, seed: int, number: int, told: Sequence[Told]
    ) -> None:
        self._indices, self._of_batches, self._seed, self._number, self._told = indices, of_batches, seed, number, told
        self._epoch = epoch

    def has(self, step: int) -> bool:
        """Whether there is such a step; those before it are past. For the thread that made this: the sampler draws."""
        if isinstance(self._indices, Drawn):
            most = min(MOST_POSITIONS_AHEAD // (self._epoch.batch * self._epoch.world), MOST_AHEAD)
            ahead = max(min(step, most), LEAST_AHEAD)
            past, end = (self._epoch.position_after(each) for each in (step, step + 1 + ahead))
            comes_twice = range(self._epoch.start, self._epoch.start + self._epoch.world)
            self._indices.draw(past, end, comes_twice)
            self._epoch = dataclasses.replace(self._epoch, count=len(self._indices))
        return step < len(self._epoch)

    def known(self) -> int:
        """Steps of which all samples are drawn."""
        if not isinstance(self._indices, Drawn) or self._indices.end == len(self._indices):
            return len(self._epoch)
        return max(self._indices.end - self._epoch.start, 0) // (self._epoch.batch * self._epoch.world)

    def position_after(self, steps: int) -> int:
        """Of the epoch: the first that no rank has taken after so many steps."""
        return self._epoch.position_after(steps)

    def order(self, step: int) -> Order:
        """What the batch of a step that is known is made of. For any thread."""
        positions, indices = self._epoch.positions(step), self._indices
        if self._of_batches:
            chosen = [plain_index(each) for each in indices[positions[0]]]
            return Order(self._seed, self._number, [positions[0]] * len(chosen), chosen, self._told)
        chosen = [plain_index(indices[each]) for each in positions]
        return Order(self._seed, self._number, positions, chosen, self._told)
