"""The loaders that this process has made, in order: a rank and a feed server know each other's by their number."""

from __future__ import annotations

from typing import Any

loaders: list[Any] = []
"""Each a `headrace.torch.loader.DataLoader`."""


class FirstBatch(BaseException):
    """In a feed server: the script has come to where it would take its first batch. Nothing should catch it."""


class Serving:
    """Whether this process is a feed server, which makes loaders and takes no batch of them."""

    on = False


def register(loader: Any) -> int:
    """The loader's number."""
    loaders.append(loader)
    return len(loaders) - 1


def batch_asked_for() -> None:
    """To be called where batches are about to be taken."""
    if Serving.on:
        raise FirstBatch
