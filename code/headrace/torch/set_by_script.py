"""What a script sets on its sampler or its dataset in place of the loader: the epoch, or another sampler."""

from __future__ import annotations

from typing import Any

from headrace.errors import InputError
from headrace.torch.dataset_epochs import epoch_set_by_script, takes_epoch, told_within
from headrace.torch.epoch_calls import listen, said_to
from headrace.torch.rank_batches import RankBatches
from headrace.torch.sampling.samplers import epoch_of, with_those_inside


class SetByScript:
    """Looks after one loader's sampler and dataset.

    Attributes:
        first: the epoch that the loader begins with.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        for each in self._told():
            listen(each)
        self._samplers, self._batch_then = self._now(), self._batch()
        self.seen()
        loader.samples.moved = self._moved
        self.first = self._on_sampler or 0

    def seen(self) -> None:
        """What is there now is known."""
        self._on_sampler, self._on_dataset = self._epochs()
        self._said = self._times()

    def told_since(self) -> int:
        """How often a sampler or a dataset was told something since it was last seen, that which was most."""
        return max((times - self._said.get(each, 0) for each, times in self._times().items()), default=0)

    def _moved(self, before: int | None, after: int | None) -> None:
        """The sampler itself has gone on to another epoch, while it drew."""
        if self._on_sampler == before:
            self._on_sampler = after

    def since(self) -> int | None:
        """The epoch that was set since it was last seen; None: none.

        Raises:
            InputError: the loader has another sampler than it was made with, or makes other batches.
        """
        if any(now is not then for now, then in zip(self._now(), self._samplers, strict=True)):
            raise InputError(
                "the script has put another sampler into the loader, as InfiniteDataLoader and MultiEpochsDataLoader "
                "do: give the loader its sampler when it is made; persistent_workers=True keeps processes over epochs"
            )
        if self._batch() != self._batch_then:
            raise InputError(
                "the script has set another batch_size, or drop_last, on the loader's batch_sampler: make a loader of "
                "that batch size, or give one a batch_sampler of your own"
            )
        on_sampler, on_dataset = self._epochs()
        if self._times() != self._said:
            return self._forward()
        if on_sampler is not None and on_sampler != self._on_sampler:
            return on_sampler
        return on_dataset if on_dataset != self._on_dataset else None

    def _forward(self) -> int | None:
        """The number that the script has just told a sampler or a dataset, if an order of its own belongs to it.

        A stage that it tells again, or goes back to, is no epoch that was before; and where a loader goes on within an
        epoch, its state has said which.
        """
        goes_on = not self._loader.begun and self._loader.state_dict()["position"] > 0
        for each in () if goes_on else self._told():
            said = said_to(each)
            if said and said.times != self._said.get(id(each)) and type(said.value) is int:
                return said.value if said.value > self._loader.epoch else None
        return None

    def _times(self) -> dict[int, int]:
        return {id(each): said.times for each in self._told() if (said := said_to(each))}

    def _told(self) -> list[Any]:
        """Samplers and datasets that are told epochs; torch's `DistributedSampler` holds its epoch, which counts."""
        own = self._loader.samples.own_sampler
        samplers = [] if self._loader.samples.dealt else with_those_inside(own)
        return [*(each for each in samplers if takes_epoch(each)), *told_within(self._loader.dataset)]

    def _epochs(self) -> tuple[int | None, int | None]:
        return epoch_of(self._loader.samples.own_sampler), epoch_set_by_script(self._loader.dataset)

    def _now(self) -> tuple[Any, Any]:
        return self._loader.batch_sampler, self._loader.sampler

    def _batch(self) -> list[tuple[Any, ...]]:
        """Of the batch sampler that stands for `batch_size`, and of the one that the script gave in its place."""
        made = self._loader.batch_sampler
        of = [made, made.given] if isinstance(made, RankBatches) else []
        return [(each.batch_size, each.drop_last, each.sampler) for each in of if each is not None]
