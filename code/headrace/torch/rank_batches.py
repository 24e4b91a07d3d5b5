"""What another loader finds in `loader.batch_sampler`: this rank's batches, as indices.

Accelerate's `skip_first_batches`, and so the Trainer of Hugging Face after a resume, makes a loader of torch's of the
dataset and the batch sampler of the one it gets. Of torch's own batch sampler it would take all samples on each rank.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler

from headrace import progress
from headrace.errors import InputError
from headrace.torch import registry

_taken = 0
progress.add_counter(lambda: _taken)


class RankBatches(BatchSampler):
    """In place of the batch sampler that torch has made for a loader, which headrace's loader does not ask.

    To iterate over it gives the epoch that the loader is about to make, and leaves the loader where it is. The samples
    are made where it is asked.

    Attributes:
        given: the script's, of which the loader was given the sampler and the batch size; None: it gave these itself.
    """

    def __init__(self, loader: Any, torchs: BatchSampler, given: BatchSampler | None) -> None:
        super().__init__(torchs.sampler, torchs.batch_size, torchs.drop_last)
        self._loader, self.given = loader, given

    def __iter__(self) -> Iterator[list[Any]]:
        # Who deals to ranks as well would take a share of this rank's share.
        asks = type(sys._getframe(1).f_locals.get("self"))
        if any(each.__name__ == "BatchSamplerShard" for each in asks.__mro__):
            raise InputError(
                "accelerator.prepare makes a loader of its own out of this one, which deals to ranks already. Leave "
                "the loader out there: model, optimizer = accelerator.prepare(model, optimizer)"
            )
        return self._batches()

    def _batches(self) -> Iterator[list[Any]]:
        global _taken
        registry.batch_asked_for()
        for batch in self._loader.indices_to_come():
            _taken += 1
            yield batch

    def set_epoch(self, epoch: int) -> None:
        """The loader's own: the Trainer of Hugging Face calls that of the batch sampler within its own."""
        self._loader.set_epoch(epoch)

    def __len__(self) -> int:
        return int(self._loader.samples.count())  # not of a subclass, whose length may be this one's
