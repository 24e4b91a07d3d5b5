"""All that a dataset and its transforms hold, and that the script's functions among them read, with the way there."""

from __future__ import annotations

import collections
import functools
import itertools
import types
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from headrace.torch.dataset_code import CALLED, LOADS, SAMPLES, held_by, instructions, is_the_scripts, reached

_MOST_OBJECTS, _MOST_PARTS = 20_000, 200
_HOLDING_NONE = (str, bytes, bytearray, int, float, complex, type(None), type, types.ModuleType, np.ndarray,
                 torch.Tensor)  # fmt: skip

_MANY = (list, tuple, set, frozenset, collections.deque)


def held(*by: Any, leaves: tuple[type, ...] = ()) -> Iterator[tuple[str, Any]]:
    """What these objects come to, each once, but numbers under each name; never raises.

    Args:
        leaves: types of objects that are not gone into.

    Yields:
        The way to it, which is the same in all processes, as `0.transform.rng`; and the object.
    """
    seen: dict[int, Any] = {}
    waiting = collections.deque((str(place), value) for place, value in enumerate(by))
    while waiting and len(seen) < _MOST_OBJECTS:
        path, value = waiting.popleft()
        if id(value) in seen:
            continue
        if not isinstance(value, _HOLDING_NONE):
            seen[id(value)] = value
            if not isinstance(value, leaves):
                waiting.extend((f"{path}.{name}", each) for name, each in _parts(value))
        yield path, value


def names_loaded(function: types.FunctionType) -> set[str]:
    """Names of globals, attributes and variables around it that a function reads."""
    code = function.__code__
    steps = instructions(code)
    return {str(step.argval) for step in steps if step.opname in ("LOAD_GLOBAL", *LOADS)} | {*code.co_freevars}


def _parts(value: Any) -> list[tuple[str, Any]]:
    try:
        of_many = isinstance(value, _MANY)
        return [
            (str(name), each)
            for name, each in itertools.islice(_named(value), _MOST_PARTS)
            if not isinstance(each, _HOLDING_NONE) or (isinstance(each, int) and not of_many)
        ]
    except Exception:  # whatever the object does when it is looked at
        return []


def _named(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, dict):
        return ((key if isinstance(key, (str, int)) else "", each) for key, each in value.items())
    if isinstance(value, _MANY):
        return enumerate(value)
    if isinstance(value, functools.partial):
        return enumerate((value.func, *value.args, *value.keywords.values()))
    if isinstance(value, types.MethodType):
        return enumerate((value.__func__, value.__self__))
    if isinstance(value, types.BuiltinMethodType):  # `random.Random(0).random`
        return [("", value.__self__)]
    if isinstance(value, (staticmethod, classmethod)):
        return [("", value.__func__)]
    if isinstance(value, types.FunctionType):
        return _around(value)
    if isinstance(value, functools._lru_cache_wrapper):
        return [("", value.__wrapped__)]
    own = [kind for kind in type(value).__mro__ if is_the_scripts(kind)]
    called = reached(type(value), (*SAMPLES, *CALLED)) if own else []
    of_classes = (pair for kind in own for pair in _of_class(kind))
    return (*held_by(value).items(), *((each.__qualname__, each) for each in called), *of_classes)


def _of_class(kind: type) -> Iterator[tuple[str, Any]]:
    """What a class gives all its objects, other than code."""
    for name, each in vars(kind).items():
        if not name.startswith("__") and not hasattr(type(each), "__get__"):
            yield name, each


def _around(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if cell != types.CellType():  # something is in it
            yield name, cell.cell_contents
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    yield from ((f"default {place}", each) for place, each in enumerate(defaults))
    if is_the_scripts(function):
        names = names_loaded(function)
        for name in sorted(names & set(function.__globals__)):
            value = function.__globals__[name]
            yield name, value
            if isinstance(value, (type, types.ModuleType)) and is_the_scripts(value):  # `augment.RNG`
                yield from ((each, vars(value)[each]) for each in sorted(names & set(vars(value))))
