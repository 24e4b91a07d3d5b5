"""Which samples an epoch has, in which order, and which of them a rank gets in which step. Numbers in, numbers out.

An epoch is a sequence of *positions*, 0, 1, 2, …; each stands for a sample (or, with a batch sampler, a batch). A step
of all ranks takes the next `batch × world` positions, rank r every world-th of them from the r-th on. This is the order
of `torch.utils.data.DistributedSampler`, and a place in it is one number, whatever the number of ranks.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Epoch:
    """A rank's steps of one epoch, or of what is left of one.

    Args:
        count: positions of the whole epoch.
        batch: positions of a step and rank.
        rank, world: which of how many ranks.
        start: the first position that has not been trained on.
        drop_last: leave out what does not fill a step of all ranks; else the last step is smaller, and up to
            `world − 1` positions come twice so that it has the same size on all ranks.
        drop_uneven: leave out those that would come twice without, and keep the smaller step.
    """

    count: int
    batch: int
    rank: int = 0
    world: int = 1
    start: int = 0
    drop_last: bool = False
    drop_uneven: bool = False

    def __len__(self) -> int:
        """Steps; the same number on every rank."""
        left = self._left_of_rank()
        return left // self.batch if self.drop_last else -(-left // self.batch)

    def positions(self, step: int) -> Sequence[int]:
        """What this rank takes in this step, from 0. Beyond `count` they begin again at `start`."""
        first = step * self.batch
        stop = min(first + self.batch, self._left_of_rank())
        own = self.start + self.rank
        taken = range(own + self.world * first, own + self.world * stop, self.world)
        return [self._wrapped(each) for each in taken] if taken and taken[-1] >= self.count else list(taken)

    def position_after(self, steps: int) -> int:
        """The first position that no rank has taken after so many steps."""
        return min(self.start + steps * self.batch * self.world, self.count)

    def _left_of_rank(self) -> int:
        left = max(self.count - self.start, 0)
        return left // self.world if self.drop_last or self.drop_uneven else -(-left // self.world)

    def _wrapped(self, position: int) -> int:
        return position if position < self.count else self.start + (position - self.start) % (self.count - self.start)


def taken_after(steps: int, world: int, begun: Sequence[int], lengths: Mapping[int, int]) -> list[int]:
    """How many batches of each part of an `IterableDataset` are trained on after so many steps of all ranks.

    Rank r takes the batches of parts r, r + world, … in turn, and passes over those that have ended.

    Args:
        begun: how many were trained on before, of each part.
        lengths: batches of those parts that are known to have ended; the others are longer.
    """
    taken = list(begun)
    for rank in range(world):
        own = range(rank, len(begun), world)
        left = [lengths[part] - begun[part] if part in lengths else steps for part in own]
        rounds = bisect.bisect_right(range(steps + 1), steps, key=lambda count: sum(min(count, each) for each in left))
        rounds -= 1  # whole ones, in which each part that has not ended gives a batch
        more = steps - sum(min(rounds, each) for each in left)
        for part, each in zip(own, left, strict=True):
            one_more = int(more > 0 and each > rounds)
            taken[part] += min(rounds, each) + one_more
            more -= one_more
    return taken


def sample_seed(seed: int, epoch: int, position: int, place: int = 0) -> int:
    """64 bits for the random draws of one sample: the same wherever, whenever and by whomever it is made.

    Args:
        place: within the position, where that stands for a batch.
    """
    mixed = seed & _MASK
    for number in (epoch, position, place):
        mixed = _splitmix64(mixed ^ _splitmix64(number & _MASK))
    return mixed


def _splitmix64(value: int) -> int:
    # Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014.
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
