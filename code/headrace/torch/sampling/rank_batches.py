"""Plan of an epoch: the positions that a rank takes in each step, and the request for each batch.

An epoch is a sequence of positions 0, 1, 2, … Each stands for a sample, or for a batch if the script gave a batch
sampler. A step of all ranks takes the next `batch × world` positions; rank r takes every world-th of them, starting
with the r-th. This is `torch.utils.data.DistributedSampler`'s order. Progress is one number, whatever the world size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import RandomSampler

from headrace.torch import distributed
from headrace.torch.fetch.map_fetcher import BatchRequest, plain_index
from headrace.torch.fetch.rng import RANK, SAMPLER, sample_seed
from headrace.torch.sampling.rank_agreement import order_digest
from headrace.torch.sampling.samplers import LazyOrder, drawn, is_distributed

LEAST_AHEAD, MOST_AHEAD = 16, 256
"""Minimum and maximum number of steps to draw in advance from an endless sampler. The number grows during an epoch."""
MOST_POSITIONS_AHEAD = 1 << 18


@dataclass(frozen=True)
class EpochPlan:
    """A rank's steps of one epoch, or of the rest of an epoch, and the request for each batch.

    Args:
        order: for each position in the epoch, the index of a sample. With a batch sampler: a list of indices.
        batch: number of positions that one rank takes in a step.
        rank, world: this rank, and the number of ranks.
        start: the first position that has not been trained on.
        drop_last: leave out the last positions if they are too few for a full step of all ranks. If false, the last
            step is smaller, and up to `world − 1` ranks repeat one of the epoch's first positions in it.
        drop_uneven: keep the smaller last step, but leave out up to `world − 1` positions instead of repeating some.
        of_batches: whether `order` has a list of indices for each position.
        seed, number: the seed of random draws, and the epoch's number.
    """

    order: Sequence[Any]
    batch: int
    rank: int = 0
    world: int = 1
    start: int = 0
    drop_last: bool = False
    drop_uneven: bool = False
    of_batches: bool = False
    seed: int = 0
    number: int = 0

    def __len__(self) -> int:
        """Return the number of steps, which is the same on every rank."""
        left = self._left_of_rank()
        return left // self.batch if self.drop_last else -(-left // self.batch)

    def positions(self, step: int) -> Sequence[int]:
        """Return the positions that this rank takes in a step. Steps count from 0."""
        first = step * self.batch
        stop = min(first + self.batch, self._left_of_rank())
        own, count = self.start + self.rank, len(self.order)
        return [each % count for each in range(own + self.world * first, own + self.world * stop, self.world)]

    def position_after(self, steps: int) -> int:
        """Return the position at which the epoch continues after every rank has made `steps` steps of this plan."""
        return min(self.start + steps * self.batch * self.world, len(self.order))

    def _left_of_rank(self) -> int:
        left = max(len(self.order) - self.start, 0)
        return left // self.world if self.drop_last or self.drop_uneven else -(-left // self.world)

    def has(self, step: int) -> bool:
        """Return whether the epoch has this step. If the sampler is long or endless, first draw more of its indices."""
        if isinstance(self.order, LazyOrder):
            most = min(MOST_POSITIONS_AHEAD // (self.batch * self.world), MOST_AHEAD)
            ahead = max(min(step, most), LEAST_AHEAD)
            past, end = (self.position_after(each) for each in (step, step + 1 + ahead))
            self.order.draw(past, end, keep=range(self.world))
        return step < len(self)

    def known(self) -> int:
        """Return the number of steps that can be requested now."""
        if not isinstance(self.order, LazyOrder) or self.order.end == len(self.order):
            return len(self)
        return max(self.order.end - self.start, 0) // (self.batch * self.world)

    def request(self, step: int) -> BatchRequest:
        """Return the request for a step's batch. The step must be less than `known()`. Any thread may call this."""
        positions, order = self.positions(step), self.order
        if self.of_batches:
            chosen = order[positions[0]]
            return BatchRequest(self.seed, self.number, [positions[0]] * len(chosen), chosen)
        return BatchRequest(self.seed, self.number, positions, [plain_index(order[each]) for each in positions])

    def digest(self) -> str:
        """Return a digest of the order. For a long or endless sampler, digest the indices that `order` holds now."""
        return order_digest(self.order.window() if isinstance(self.order, LazyOrder) else self.order)


class Planner:
    """Plans the epochs of one loader of a map-style dataset.

    Args:
        loader: a `headrace.torch.dataloader.DataLoader`.
        given: whether the script gave a sampler or a batch sampler; if not, torch made one from `shuffle`.
        of_batches: whether the script gave a batch sampler.
    """

    def __init__(self, loader: Any, given: bool, of_batches: bool) -> None:
        self._loader, self._given, self._of_batches = loader, given, of_batches

    @property
    def dealt(self) -> bool:
        """True if the loader's sampler is torch's own DistributedSampler, for the whole dataset and all ranks."""
        return is_distributed(self._loader.sampler, self._loader.ranks, self._loader.dataset)

    @property
    def own(self) -> bool:
        """True if the script gave a sampler or a batch sampler other than a DistributedSampler."""
        return self._given and not self.dealt

    def sampler_epoch(self) -> int:
        """Return the epoch number of a DistributedSampler, and 0 for other samplers."""
        return int(self._loader.sampler.epoch) if self.dealt else 0

    def steps(self) -> int:
        """Return the number of this rank's steps in an epoch. Raises `TypeError`, as torch does, if it is not known."""
        sampler = self._sampler
        try:
            return len(self._plan(range(len(self._loader.dataset if self.dealt else sampler))))
        except (NotImplementedError, OverflowError) as error:
            raise TypeError(f"{type(sampler).__name__} has no length") from error

    def plan(self, epoch: int, start: int) -> EpochPlan:
        """Return this rank's plan of an epoch, beginning at position `start`. Raises `InputError`."""
        loader = self._loader
        # With shard_by_rank=False, two ranks may have different samples at a position: give them different draws.
        alone = self._given and loader.ranks == 1 and distributed.rank() > 0
        seed = sample_seed(loader.seed, 0, distributed.rank(), RANK) if alone else loader.seed
        return self._plan(self._order(epoch), start, seed, epoch)

    def _order(self, epoch: int) -> Sequence[Any]:
        """Return the sample index at each position; with a batch sampler, the list of indices at each position."""
        loader, sampler, dealt = self._loader, self._sampler, self.dealt
        if self.own:
            seed = sample_seed(loader.seed, epoch, 0, SAMPLER)
            return drawn(sampler, self._of_batches, loader.dataset, seed, epoch)
        if not (sampler.shuffle if dealt else isinstance(sampler, RandomSampler)):
            return range(len(loader.dataset))
        # The formula of DistributedSampler, so that its users keep their order.
        generator = torch.Generator().manual_seed((sampler.seed if dealt else loader.seed) + epoch)
        order: Sequence[int] = torch.randperm(len(loader.dataset), generator=generator).numpy()
        return order

    @property
    def _sampler(self) -> Any:
        return self._loader.batch_sampler if self._of_batches else self._loader.sampler

    def _plan(self, order: Sequence[Any], start: int = 0, seed: int = 0, number: int = 0) -> EpochPlan:
        loader = self._loader
        batch = 1 if self._of_batches or loader.batch_size is None else loader.batch_size
        drops = bool(loader.drop_last), bool(self.dealt and loader.sampler.drop_last)
        return EpochPlan(order, batch, loader.rank, loader.ranks, start, *drops, self._of_batches, seed, number)
