"""The random generators that a process has, Python's, NumPy's and torch's."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
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
    """Something that draws now and then: it goes on where it stood, and changes nothing outside."""

    def __init__(self) -> None:
        self._states: tuple[Any, ...] | None = None

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """What is drawn inside is this one's."""
        outside = _states()
        if self._states is not None:
            _go_to(self._states)
        try:
            yield
        finally:
            self._states = _states()
            _go_to(outside)


def own_draws() -> contextlib.AbstractContextManager[None]:
    """What is drawn inside changes nothing outside."""
    return Apart().drawing()


def _states() -> tuple[Any, ...]:
    return torch.get_rng_state(), random.getstate(), np.random.get_state()


def _go_to(states: tuple[Any, ...]) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])
