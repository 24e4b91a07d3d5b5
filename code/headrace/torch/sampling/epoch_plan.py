"""Positions of an epoch, the steps in which a rank takes them, and the request for the batch of a step.

An epoch is a sequence of positions, 0, 1, 2, …; each stands for a sample, or for a batch where the script gave a batch
sampler. A step of all ranks takes the next `batch × world` positions; rank r takes every world-th of them from the r-th
on. This is the order of `torch.utils.data.DistributedSampler`. A place in it is one number, on any number of ranks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.torch import distributed
from headrace.torch.fetch.map_fetcher import BatchRequest, Index, plain_index
from headrace.torch.fetch.rng import RANK, sample_seed
from headrace.torch.sampling.rank_agreement import order_digest
from headrace.torch.sampling.samplers import LazyOrder, epoch_order, is_distributed

LEAST_AHEAD, MOST_AHEAD = 16, 256
"""Steps for which an endless sampler draws ahead of training; between these, as many as were made."""
MOST_POSITIONS_AHEAD = 1 << 18


@dataclass(frozen=True)
class Epoch:
    """A rank's steps of one epoch, or of the rest of one.

    Args:
        count: positions of the whole epoch.
        batch: positions of a step on one rank.
        rank, world: this rank, and the number of ranks.
        start: the first position that has not been trained on.
        drop_last: leave out what does not fill a step of all ranks. Without it the last step is smaller, and up to
            `world − 1` positions from the epoch's beginning repeat so that it has the same size on all ranks.
        drop_uneven: leave out the positions that would need repeats, and keep the smaller step.
    """

    count: int
    batch: int
    rank: int = 0
    world: int = 1
    start: int = 0
    drop_last: bool = False
    drop_uneven: bool = False

    def __len__(self) -> int:
        """Return the number of steps, which is the same on every rank."""
        left = self._left_of_rank()
        return left // self.batch if self.drop_last else -(-left // self.batch)

    def positions(self, step: int) -> Sequence[int]:
        """Return what this rank takes in a step, counted from 0."""
        first = step * self.batch
        stop = min(first + self.batch, self._left_of_rank())
        own = self.start + self.rank
        return [each % self.count for each in range(own + self.world * first, own + self.world * stop, self.world)]

    def position_after(self, steps: int) -> int:
        """Return the first position that no rank has taken after this number of steps."""
        return min(self.start + steps * self.batch * self.world, self.count)

    def _left_of_rank(self) -> int:
        left = max(self.count - self.start, 0)
        return left // self.world if self.drop_last or self.drop_uneven else -(-left // self.world)


class EpochPlan:
    """The steps of a rank in one epoch, and the request of each.

    Args:
        order: what the positions of the epoch stand for.
        of_batches: whether each position is a list of samples.
        epoch: the positions of each step.
        number: of the epoch.
    """

    def __init__(self, order: Sequence[Any], of_batches: bool, epoch: Epoch, seed: int, number: int) -> None:
        self._order, self._of_batches, self._epoch = order, of_batches, epoch
        self._seed, self._number = seed, number

    def has(self, step: int) -> bool:
        """Tell whether there is such a step; those before it are past. An endless sampler draws here."""
        if isinstance(self._order, LazyOrder):
            most = min(MOST_POSITIONS_AHEAD // (self._epoch.batch * self._epoch.world), MOST_AHEAD)
            ahead = max(min(step, most), LEAST_AHEAD)
            past, end = (self._epoch.position_after(each) for each in (step, step + 1 + ahead))
            self._order.draw(past, end, keep=range(self._epoch.world))
            self._epoch = dataclasses.replace(self._epoch, count=len(self._order))
        return step < len(self._epoch)

    def known(self) -> int:
        """Return how many steps can be requested by now."""
        if not isinstance(self._order, LazyOrder) or self._order.end == len(self._order):
            return len(self._epoch)
        return max(self._order.end - self._epoch.start, 0) // (self._epoch.batch * self._epoch.world)

    def position_after(self, steps: int) -> int:
        """Return the first position of the epoch that no rank has taken after this number of steps."""
        return self._epoch.position_after(steps)

    def request(self, step: int) -> BatchRequest:
        """Return what the batch of a known step is made of; any thread may call this."""
        positions, order = self._epoch.positions(step), self._order
        if self._of_batches:
            chosen = [plain_index(each) for each in order[positions[0]]]
            return BatchRequest(self._seed, self._number, [positions[0]] * len(chosen), chosen)
        return BatchRequest(self._seed, self._number, positions, [plain_index(order[each]) for each in positions])

    def indices(self) -> Iterator[list[Index]]:
        """Return the indices of this rank's batches, step by step."""
        step = 0
        while self.has(step):
            yield list(self.request(step).indices)
            step += 1

    def digest(self) -> str:
        """Return a digest of the order, or of its first part where the sampler is endless."""
        return order_digest(self._order.window() if isinstance(self._order, LazyOrder) else self._order)


class Planner:
    """Plans the epochs of one loader of a map-style dataset.

    Args:
        loader: a `headrace.torch.dataloader.DataLoader`.
        given: whether the script gave a sampler or a batch sampler; else the sampler stands for `shuffle`.
        of_batches: whether it gave a batch sampler.
    """

    def __init__(self, loader: Any, given: bool, of_batches: bool) -> None:
        self._loader, self._given, self._of_batches = loader, given, of_batches

    @property
    def dealt(self) -> bool:
        """Whether the script gave torch's DistributedSampler, which deals as the loader does."""
        return is_distributed(self._loader.sampler, self._loader.ranks, self._loader.dataset)

    @property
    def own(self) -> bool:
        """Whether a sampler of the script's says the order, and none that headrace knows."""
        return self._given and not self.dealt

    def sampler_epoch(self) -> int:
        """Return the epoch that a DistributedSampler holds; 0 for other samplers."""
        return int(self._loader.sampler.epoch) if self.dealt else 0

    def steps(self) -> int:
        """Return this rank's steps of a whole epoch. Raises `TypeError` where the sampler has no length, as torch."""
        sampler = self._sampler
        try:
            return len(self._epoch(len(self._loader.dataset) if self.dealt else len(sampler), 0))
        except (NotImplementedError, OverflowError) as error:
            raise TypeError(f"{type(sampler).__name__} has no length") from error

    def plan(self, epoch: int, start: int) -> EpochPlan:
        """Return this rank's steps of an epoch, from a position on. Raises `InputError`."""
        loader = self._loader
        order = epoch_order(self._sampler, given=self._given, dealt=self.dealt, of_batches=self._of_batches,
                            dataset=loader.dataset, seed=loader.seed, epoch=epoch)  # fmt: skip
        # Where each rank's own sampler deals, samples of one position on two ranks draw differently.
        alone = self._given and loader.ranks == 1 and distributed.rank() > 0
        seed = sample_seed(loader.seed, 0, distributed.rank(), RANK) if alone else loader.seed
        return EpochPlan(order, self._of_batches, self._epoch(len(order), start), seed, epoch)

    @property
    def _sampler(self) -> Any:
        return self._loader.batch_sampler if self._of_batches else self._loader.sampler

    def _epoch(self, count: int, start: int) -> Epoch:
        loader = self._loader
        batch = 1 if self._of_batches or loader.batch_size is None else loader.batch_size
        drop_uneven = self.dealt and loader.sampler.drop_last
        return Epoch(count, batch, loader.rank, loader.ranks, start, bool(loader.drop_last), bool(drop_uneven))
