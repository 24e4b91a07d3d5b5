"""Which samples of a map-style dataset one loader's rank takes in an epoch, and in which steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headrace.torch.indices import Index, plain_index
from headrace.torch.order import Epoch
from headrace.torch.sampling import count_of, epoch_indices, is_distributed


class Samples:
    """Those of a loader.

    Args:
        loader: a `headrace.torch.loader.DataLoader`.
        world: how many ranks share them.
        given: whether the script gave a sampler; else it stands for `shuffle`.
        batched: whether it gave a batch sampler.
    """

    def __init__(self, loader: Any, world: int, given: bool, batched: bool) -> None:
        self._loader, self._world, self._given, self.batched = loader, world, given or batched, batched

    @property
    def own_sampler(self) -> Any:
        """What says which samples an epoch has: the batch sampler if the script gave one, else the sampler."""
        return self._loader.batch_sampler if self.batched else self._loader.sampler

    @property
    def dealt(self) -> bool:
        """Whether the script gave torch's DistributedSampler, which deals as the loader does."""
        return is_distributed(self._loader.sampler, self._world, self._loader.dataset)

    @property
    def drawn_by_the_scripts(self) -> bool:
        """Whether a sampler of the script's says the order, and none that headrace knows."""
        return self._given and not self.dealt

    def indices(self, epoch: int) -> Sequence[Any]:
        """What the positions of an epoch stand for. Raises `InputError`."""
        dataset, seed = self._loader.dataset, self._loader.seed
        return epoch_indices(self.own_sampler, self._given, self.dealt, self.batched, dataset, seed, epoch)

    def steps(self, start: int, count: int | None = None) -> Epoch:
        """This rank's from a position on; `count`: how many positions there are, if that is known."""
        own, loader = self.own_sampler, self._loader
        if count is None:
            count = len(loader.dataset) if self.dealt else count_of(own)
        batch = 1 if self.batched or loader.batch_size is None else loader.batch_size
        drop_uneven = self.dealt and loader.sampler.drop_last
        return Epoch(count, batch, loader.rank, self._world, start, bool(loader.drop_last), bool(drop_uneven))

    def of_rank(self, epoch: int, start: int) -> Iterator[list[Index]]:
        """The indices of this rank's samples, step by step, from a position of an epoch on."""
        indices = self.indices(epoch)
        steps = self.steps(start, len(indices))
        for step in range(len(steps)):
            yield [plain_index(indices[each]) for each in steps.positions(step)]
