"""Random generators that a dataset and its transforms hold, as albumentations' do: seeded like the global ones.

All processes that make batches are forked from one, and would draw the same from them; data hosts too.
"""

from __future__ import annotations

import contextlib
import random
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from headrace.torch.held import held

DRAWING = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
_GLOBAL = (random._inst, np.random.mtrand._rand, torch.default_generator)  # type: ignore[attr-defined]
Held = Mapping[str, Any]
"""Generators by the way that leads to them, which is the same in all processes."""


def generators_held(*by: Any) -> dict[str, Any]:
    """Those that these objects hold, and those that the script's functions among them read; never raises."""
    return {path: each for path, each in held(*by, leaves=DRAWING) if isinstance(each, DRAWING) and _is_own(each)}


def _is_own(generator: Any) -> bool:
    """Whether it is none of the process's, of the system or of a GPU, which forked processes must not touch."""
    if isinstance(generator, random.SystemRandom) or any(generator is each for each in _GLOBAL):
        return False
    if isinstance(generator, torch.Generator):
        return generator.device.type == "cpu"
    # Another kind in a RandomState cannot be seeded.
    return not isinstance(generator, np.random.RandomState) or isinstance(
        generator._bit_generator,
        np.random.MT19937,  # type: ignore[attr-defined]
    )


@contextlib.contextmanager
def kept(generators: Held) -> Iterator[None]:
    """What is drawn from them inside changes nothing outside: the script may draw from them too."""
    states = [(each, state_of(each)) for each in generators.values()]
    try:
        yield
    finally:
        for each, state in states:
            _set_state(each, state)


def state_of(drawing: Any) -> Any:
    """What a generator draws next follows from it."""
    if isinstance(drawing, np.random.Generator):
        return drawing.bit_generator.state
    return drawing.getstate() if isinstance(drawing, random.Random) else drawing.get_state()


def _set_state(drawing: Any, state: Any) -> None:
    if isinstance(drawing, np.random.Generator):
        drawing.bit_generator.state = state
    elif isinstance(drawing, random.Random):
        drawing.setstate(state)
    else:
        drawing.set_state(state)


def seed_them(generators: Held, seed: int) -> None:
    """Each begins anew, with a seed of its own."""
    for path, each in generators.items():
        own = (seed + zlib.crc32(path.encode(errors="replace"))) & 0x7FFF_FFFF_FFFF_FFFF
        if isinstance(each, torch.Generator):
            each.manual_seed(own)
        elif isinstance(each, np.random.Generator):
            each.bit_generator.state = type(each.bit_generator)(own).state
        else:
            each.seed(own if isinstance(each, random.Random) else own & 0xFFFF_FFFF)
