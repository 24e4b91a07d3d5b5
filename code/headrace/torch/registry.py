"""The loaders that this process has made, in order: a rank and a feed server know each other's by their number."""

from __future__ import annotations

from typing import Any

loaders: list[Any] = []
"""In a feed server: each a `headrace.torch.loader.DataLoader`. A rank only counts its own."""


class FirstBatch(BaseException):
    """In a feed server: the script has come to where it would take its first batch. Nothing should catch it."""


class Serving:
    """Whether this process is a feed server, which makes loaders and takes no batch of them."""

    on = False
    asked = False
    """Whether the script has come to its first batch."""
    made = 0
    """Loaders that this process has made."""


def register(loader: Any) -> int:
    """The loader's number."""
    if Serving.on:
        loaders.append(loader)
    Serving.made += 1
    return Serving.made - 1


def batch_asked_for() -> None:
    """To be called where batches are about to be taken."""
    if Serving.on:
        Serving.asked = True
        raise FirstBatch
