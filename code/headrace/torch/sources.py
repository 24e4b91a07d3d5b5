"""Where a loader's batches come from: feed servers where the job has them, else this host."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from headrace.settings import SECRET_VARIABLE
from headrace.torch import distributed as world
from headrace.torch.dataset_code import is_the_scripts
from headrace.torch.dataset_writes import counted_by_samples
from headrace.torch.epoch_steps import EpochSteps
from headrace.torch.feed.client import Feed
from headrace.torch.feed.stream_client import StreamFeed
from headrace.torch.fetch.local_workers import LocalBatches
from headrace.torch.fetch.map_fetcher import StreamOrder
from headrace.torch.held import held
from headrace.torch.remade import Remade

_COUNTED = (
    "while it makes samples, and makes them of it: each process that makes samples has a number of its own, so they "
    "are others than in one process, as with torch's workers; make a sample of its index and of what set_epoch is told"
)


class Sources:
    """Opens one for each iteration; what it opens has `next` and `close`.

    Args:
        loader: whose batches they are.
        feeds: HOST:PORT of each feed server; empty: none.
        limit_s: how long to wait while nothing comes from them.
    """

    def __init__(self, loader: Any, feeds: Sequence[str], limit_s: float) -> None:
        self._loader, self._feeds, self._limit_s = loader, feeds, limit_s
        self._local = LocalBatches(loader)
        self._looked = False

    def batches(self, steps: EpochSteps) -> Any:
        """Of a map-style dataset: those of these steps."""
        self._look()
        if not self._feeds:
            return self._local.begin(steps.order, steps.has)
        given = self._feeds, self._secret(), steps.order, steps.known, self._hello()
        feed = Feed(*given, world.rank(), world.world_size(), self._limit_s, self._pins())
        return Remade(self._loader, feed, steps.order)

    def parts(self, orders: Callable[[int, int], StreamOrder], count: int) -> Any:
        """Of an `IterableDataset`: those of this rank's parts, so many, in turn and without an end."""
        self._look()
        if not self._feeds:
            return self._local.begin(lambda step: orders(step % count, step // count), _always)
        given = self._feeds, self._secret(), orders, count, self._hello()
        return StreamFeed(*given, world.rank() * count, self._limit_s, self._pins())

    def _look(self) -> None:
        """Warns of samples that depend on how many were made before them."""
        several = self._feeds or self._loader.local_workers > 1 or self._loader.is_stream
        if self._looked or world.rank() or not several:
            return
        self._looked = True
        kinds: set[Any] = {type(each) for _, each in held(self._loader.dataset, self._loader.collate_fn)}
        for kind in sorted(filter(is_the_scripts, kinds), key=lambda kind: kind.__qualname__):
            if names := counted_by_samples(kind):
                print(f"warning: {kind.__qualname__} adds to {', '.join(sorted(names))} {_COUNTED}", flush=True)

    def _hello(self) -> dict[str, Any]:
        return {"loader": self._loader.number, "about": self._loader.about()}

    def _pins(self) -> bool:
        return bool(self._loader.pin_memory and torch.cuda.is_available())

    @staticmethod
    def _secret() -> str:
        return os.environ.get(SECRET_VARIABLE, "")


def _always(step: int) -> bool:
    return True
