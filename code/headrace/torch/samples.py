"""Which samples of a map-style dataset one loader's rank takes in an epoch, and in which steps."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils.data import BatchSampler, SequentialSampler

from headrace.torch import distributed as world
from headrace.torch.dataset_epochs import told_by_script
from headrace.torch.epoch_steps import EpochSteps
from headrace.torch.indices import Index
from headrace.torch.sampling.epoch_plan import Epoch, sample_seed
from headrace.torch.sampling.samplers import epoch_indices, is_distributed, with_those_inside

_OF_RANK, _OF_SIZE = 1 << 43, 1 << 42
"""Places that no sample has: a rank whose own sampler deals, and a dataset's size."""


class Samples:
    """Those of a loader.

    Args:
        loader: a `headrace.torch.dataloader.DataLoader`.
        world: how many ranks share them.
        given: whether the script gave a sampler; else it stands for `shuffle`.
        batched: whether it gave a batch sampler.
    """

    def __init__(self, loader: Any, world: int, given: bool, batched: bool) -> None:
        self._loader, self._world, self._given, self.batched = loader, world, given or batched, batched
        self.moved: Callable[[int | None, int | None], None] = _nobody
        """Told of the epochs that a sampler says it is in, before and after it has drawn."""

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
        given = self.own_sampler, self._given, self.dealt, self.batched
        return epoch_indices(*given, dataset, seed, epoch, lambda before, after: self.moved(before, after))

    def count(self) -> int:
        """Steps of a whole epoch. Raises `TypeError` where the sampler has no length, as torch does."""
        try:
            return len(self._steps(0, len(self._loader.dataset) if self.dealt else len(self.own_sampler)))
        except (NotImplementedError, OverflowError) as error:
            raise TypeError(f"{type(self.own_sampler).__name__} has no length") from error

    def steps(self, epoch: int, start: int, indices: Sequence[Any]) -> EpochSteps:
        """This rank's of an epoch, from a position on; `indices`: what the positions of the epoch stand for."""
        own, loader = self._steps(start, len(indices)), self._loader
        return EpochSteps(indices, self.batched, own, self._seed(), epoch, told_by_script(loader.dataset))

    def _seed(self) -> int:
        """Of samples. Where each rank's own sampler deals, samples of one position on two ranks draw differently.

        So do those of datasets of other sizes, whose orders may begin with one seed (`registry.default_seed`).
        """
        loader = self._loader
        seed = loader.seed if loader.seeded else sample_seed(loader.seed, 0, loader.about()["size"] or 0, _OF_SIZE)
        in_order = all(type(each) in (BatchSampler, SequentialSampler) for each in with_those_inside(self.own_sampler))
        alone = self._given and not in_order and self._world == 1 and world.rank() > 0
        return sample_seed(seed, 0, world.rank(), _OF_RANK) if alone else seed

    def _steps(self, start: int, count: int) -> Epoch:
        loader = self._loader
        batch = 1 if self.batched or loader.batch_size is None else loader.batch_size
        drop_uneven = self.dealt and loader.sampler.drop_last
        return Epoch(count, batch, loader.rank, self._world, start, bool(loader.drop_last), bool(drop_uneven))

    def of_rank(self, epoch: int, start: int) -> Iterator[list[Index]]:
        """The indices of this rank's samples, step by step, from a position of an epoch on."""
        steps = self.steps(epoch, start, self.indices(epoch))
        for step in itertools.takewhile(steps.has, itertools.count()):
            yield list(steps.order(step).indices)


def _nobody(before: int | None, after: int | None) -> None:
    pass
