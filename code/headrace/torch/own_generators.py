"""Random generators that a dataset and its transforms hold, as albumentations' do: seeded like the global ones.

All processes that make batches are forked from one, and would draw the same from them; data hosts too.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import random
import types
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from headrace.torch.dataset_code import CALLED, SAMPLES, held_by, instructions, is_the_scripts, reached

DRAWING = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
_MOST_OBJECTS, _MOST_PARTS = 20_000, 200
_HOLDING_NONE = (str, bytes, bytearray, int, float, complex, type(None), type, types.ModuleType, np.ndarray,
                 torch.Tensor)  # fmt: skip
_GLOBAL = (random._inst, np.random.mtrand._rand, torch.default_generator)  # type: ignore[attr-defined]
Held = Mapping[str, Any]
"""Generators by the way that leads to them, which is the same in all processes."""


def generators_held(*by: Any) -> dict[str, Any]:
    """Those that these objects hold, and those that the script's functions among them read; never raises."""
    found: dict[int, tuple[str, Any]] = {}
    seen: dict[int, Any] = {}
    waiting = collections.deque((str(place), value) for place, value in enumerate(by))
    while waiting and len(seen) < _MOST_OBJECTS:
        path, value = waiting.popleft()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if not isinstance(value, DRAWING):
            waiting.extend((f"{path}.{name}", each) for name, each in _held(value))
        elif _is_own(value):
            found[id(value)] = path, value
    return dict(found.values())


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


def _held(value: Any) -> list[tuple[str, Any]]:
    try:
        parts = list(itertools.islice(_parts(value), _MOST_PARTS))
    except Exception:  # whatever the object does when it is looked at
        return []
    return [(str(name), each) for name, each in parts if not isinstance(each, _HOLDING_NONE)]


def _parts(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, _HOLDING_NONE):
        return ()
    if isinstance(value, dict):
        return ((key if isinstance(key, (str, int)) else "", each) for key, each in value.items())
    if isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        return enumerate(value)
    if isinstance(value, functools.partial):
        return enumerate((value.func, *value.args, *value.keywords.values()))
    if isinstance(value, types.MethodType):
        return enumerate((value.__func__, value.__self__))
    if isinstance(value, types.FunctionType):
        return _around(value)
    called = reached(type(value), (*SAMPLES, *CALLED)) if is_the_scripts(type(value)) else []
    return (*held_by(value).items(), *((each.__qualname__, each) for each in called))


def _around(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if cell != types.CellType():  # something is in it
            yield name, cell.cell_contents
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    yield from ((f"default {place}", each) for place, each in enumerate(defaults))
    if is_the_scripts(function):
        names = {str(step.argval) for step in instructions(function.__code__) if step.opname == "LOAD_GLOBAL"}
        yield from ((name, function.__globals__[name]) for name in sorted(names & set(function.__globals__)))
