"""The random generators that a process has, Python's, NumPy's and torch's."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from headrace.torch.own_generators import Held, seed_them


def seed_all(seed: int, own: Held | None = None) -> None:
    """Python's, NumPy's and torch's CPU generators begin anew, and a dataset's own."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    seed_them(own or {}, seed)


class Apart:
    """Something that draws now and then: it goes on where it stood, and changes nothing outside.

    Args:
        generators: that it draws from beside the process's own.
    """

    def __init__(self, generators: Sequence[torch.Generator] = ()) -> None:
        self._generators = generators
        self._states: list[Any] = []

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """What is drawn inside is this one's."""
        outside = self._now()
        if self._states:
            self._go_to(self._states)
        try:
            yield
        finally:
            self._states = self._now()
            self._go_to(outside)

    def _now(self) -> list[Any]:
        own = [each.get_state() for each in self._generators]
        return [torch.get_rng_state(), random.getstate(), np.random.get_state(), *own]

    def _go_to(self, states: list[Any]) -> None:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])
        for each, state in zip(self._generators, states[3:], strict=True):
            each.set_state(state)


def own_draws() -> contextlib.AbstractContextManager[None]:
    """What is drawn inside changes nothing outside."""
    return Apart().drawing()
