"""Local mode: the same orders, made by torch's own DataLoader in this process or in its worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

from headrace.errors import HeadraceError
from headrace.torch.fetch import Made, Maker, Order, SampleError, own_draws


class LocalBatches:
    """One loader's batches, made on this host; keeps its worker processes where they are persistent."""

    def __init__(self, loader: Any) -> None:
        self._orders = _Orders()
        workers = {
            "num_workers": loader.num_workers, "timeout": loader.timeout, "worker_init_fn": loader.worker_init_fn,
            "prefetch_factor": loader.prefetch_factor, "persistent_workers": loader.persistent_workers,
            "multiprocessing_context": loader.multiprocessing_context,
        } if loader.num_workers else {}  # fmt: skip
        made = _Made(loader.maker(), in_process=not loader.num_workers)
        self._loader = TorchDataLoader(
            made,
            batch_sampler=self._orders,
            collate_fn=_as_it_is,
            pin_memory=loader.pin_memory,
            generator=torch.Generator(),  # else each epoch would draw from the script's
            **workers,
        )
        self._batches: Iterator[Any] = iter(())

    def begin(self, order: Callable[[int], Order], steps: int) -> LocalBatches:
        """The steps of one epoch come next."""
        self._orders.begin(order, steps)
        self._batches = iter(self._loader)
        return self

    def next(self) -> Made:
        """The next step's batch. Raises `SampleError`."""
        batch, skipped, error = next(self._batches)
        if error:
            raise SampleError(error)
        return Made(batch, skipped)

    def close(self) -> None:
        """Ends worker processes that are not persistent."""
        self._batches = iter(())


class _Orders:
    """torch's view of an epoch: a sampler of batches, each of one index, which is an order."""

    def __init__(self) -> None:
        self._order: Callable[[int], Order] | None = None
        self._steps = 0

    def begin(self, order: Callable[[int], Order], steps: int) -> None:
        self._order, self._steps = order, steps

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[list[Order]]:
        assert self._order is not None
        for step in range(self._steps):
            yield [self._order(step)]


class _Made(Dataset[Any]):
    """torch's view of the samples: each a whole batch."""

    def __init__(self, maker: Maker, in_process: bool) -> None:
        self._maker, self._in_process = maker, in_process

    def __getitem__(self, order: Order) -> tuple[Any, list[tuple[Any, str]], str]:
        try:
            if self._in_process:
                with own_draws():
                    made = self._maker.make(order)
            else:
                made = self._maker.make(order)
        except HeadraceError as error:
            return None, [], str(error)
        return made.batch, list(made.skipped), ""


def _as_it_is(batches: list[Any]) -> Any:
    return batches[0]
