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
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from headrace.torch.dataset_code import CALLED, SAMPLES, held_by, instructions, is_the_scripts, reached

DRAWING = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
_MOST_OBJECTS, _MOST_PARTS = 5_000, 200
_HOLDING_NONE = (
    str,
    bytes,
    bytearray,
    int,
    float,
    complex,
    type(None),
    type,
    types.ModuleType,
    np.ndarray,
    torch.Tensor,
)
_GLOBAL = (random._inst, np.random.mtrand._rand, torch.default_generator)  # type: ignore[attr-defined]


def generators_held(*by: Any) -> list[Any]:
    """Those that these objects hold, and those that the script's functions among them read; never raises."""
    found: dict[int, Any] = {}
    seen: dict[int, Any] = {}
    waiting = collections.deque(by)
    while waiting and len(seen) < _MOST_OBJECTS:
        value = waiting.popleft()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if not isinstance(value, DRAWING):
            waiting.extend(_held(value))
        elif _is_own(value):
            found[id(value)] = value
    return list(found.values())


def _is_own(generator: Any) -> bool:
    """Whether it is none of the process's, of the system or of a GPU, which forked processes must not touch."""
    elsewhere = isinstance(generator, torch.Generator) and generator.device.type != "cpu"
    return not (elsewhere or isinstance(generator, random.SystemRandom) or any(generator is each for each in _GLOBAL))


@contextlib.contextmanager
def kept(generators: Sequence[Any]) -> Iterator[None]:
    """What is drawn from them inside changes nothing outside: the script may draw from them too."""
    states = [state_of(each) for each in generators]
    try:
        yield
    finally:
        for each, state in zip(generators, states, strict=True):
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


def seed_them(generators: Iterable[Any], seed: int) -> None:
    """Each begins anew, with a seed of its own."""
    for number, each in enumerate(generators):
        own = (seed + number) & 0x7FFF_FFFF_FFFF_FFFF
        if isinstance(each, torch.Generator):
            each.manual_seed(own)
        elif isinstance(each, np.random.Generator):
            each.bit_generator.state = type(each.bit_generator)(own).state
        else:
            each.seed(own if isinstance(each, random.Random) else own & 0xFFFF_FFFF)


def _held(value: Any) -> Iterable[Any]:
    try:
        return list(itertools.islice(_parts(value), _MOST_PARTS))
    except Exception:  # whatever the object does when it is looked at
        return ()


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, _HOLDING_NONE):
        return ()
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        return value
    if isinstance(value, functools.partial):
        return (value.func, *value.args, *value.keywords.values())
    if isinstance(value, types.MethodType):
        return (value.__func__, value.__self__)
    if isinstance(value, types.FunctionType):
        return _around(value)
    called = reached(type(value), (*SAMPLES, *CALLED)) if is_the_scripts(type(value)) else []
    return (*held_by(value).values(), *called)


def _around(function: types.FunctionType) -> Iterable[Any]:
    for cell in function.__closure__ or ():
        if cell != types.CellType():  # something is in it
            yield cell.cell_contents
    yield from (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    if is_the_scripts(function):
        names = {str(step.argval) for step in instructions(function.__code__) if step.opname == "LOAD_GLOBAL"}
        yield from (function.__globals__[name] for name in sorted(names & set(function.__globals__)))
