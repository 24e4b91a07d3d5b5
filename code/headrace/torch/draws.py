"""The random generators that a process has, Python's, NumPy's and torch's."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Python's, NumPy's and torch's CPU generators begin anew."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)


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


def state_of(drawing: Any) -> Any:
    """What a generator draws next follows from it."""
    if isinstance(drawing, torch.Generator):
        return drawing.get_state().tolist()
    if isinstance(drawing, np.random.Generator):
        return drawing.bit_generator.state
    return drawing.getstate() if isinstance(drawing, random.Random) else drawing.get_state()
