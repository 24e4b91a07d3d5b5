"""The random generators that a process has, Python's, NumPy's and torch's."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch

from headrace.torch.own_generators import Held, seed_them


def seed_all(seed: int, own: Held | None = None) -> None:
    """Python's, NumPy's and torch's CPU generators begin anew, and a dataset's own."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    seed_them(own or {}, seed)


@contextlib.contextmanager
def own_draws() -> Iterator[None]:
    """What is drawn inside changes nothing outside."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])
