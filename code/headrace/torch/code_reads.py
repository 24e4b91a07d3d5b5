"""What the script's functions read while they make samples and batches: globals, settings, what is around them."""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import itertools
import types
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from headrace.torch.dataset_code import (
    CALLED,
    LOADS,
    SAMPLES,
    function_of,
    held_by,
    instructions,
    is_settings,
    is_the_scripts,
    reached,
    read_by_methods,
)
from headrace.torch.dataset_writes import globals_written, only_told

_HOLDING = (list, tuple, dict, set, frozenset, np.ndarray, torch.Tensor)
"""Kinds of globals that are data, and not a rank's own number."""
_FILLED = (list, dict, set)
"""Those that a function may be handed, and fill."""
_PLAIN = (bool, int, float, str, tuple, type(None))
_DEEPEST, _MOST_PARTS, _MOST_OBJECTS, _FIRST = 3, 100, 1000, 3


def from_its_class(value: Any, exact: bool = False, late: bool = False) -> dict[str, Any]:
    """What the script's classes give their objects, and what of the script's globals makes samples.

    Args:
        exact: numbers and texts among the globals too, which may differ between ranks, but not within a process.
        late: what the code that makes samples may write among the globals does not count: a cache, a buffer.
    """
    found = data_of_classes(type(value))
    if is_the_scripts(type(value)):
        functions = reached(type(value), SAMPLES)
        if exact:
            functions += [f for each in vars(value).values() for f in functions_in(each)]
        own = reached(type(value), ("set_epoch",))
        read = globals_of(functions, exact, {name for each in own for name in globals_written(each.__code__)})
        if late:
            written = {name for each in functions for name in globals_written(each.__code__)}
            read = {name: each for name, each in read.items() if name not in written and not isinstance(each, _FILLED)}
        found |= {f"global {name}": each for name, each in read.items()}
    return found


def data_of_classes(kind: type) -> dict[str, Any]:
    """What the script's class, and its bases, give all their objects, other than code."""
    return {
        name: each
        for above in reversed(kind.__mro__)
        if is_the_scripts(above)
        for name, each in vars(above).items()
        if not name.startswith("__") and not callable(each) and not hasattr(each, "__get__")
    }


def globals_of(
    functions: Sequence[types.FunctionType], exact: bool, also_written: Collection[str] = ()
) -> dict[str, Any]:
    """Data among the script's globals that these functions read.

    Args:
        exact: numbers and texts too, those that the script's classes, modules and parsed arguments hold, and what
            functions read that these call; not what any of them writes, as a counter or a cache is, or only prints.
        also_written: globals that something else writes.
    """
    found: dict[str, Any] = {}
    written = set(also_written)
    seen: set[types.FunctionType] = set()
    waiting = [(each, True) for each in functions]
    while waiting:
        function, given = waiting.pop()
        if function in seen:
            continue
        seen.add(function)
        written |= globals_written(function.__code__)
        kinds = (*(_HOLDING if given else ()), *(_PLAIN if exact else ()))
        steps, told = list(instructions(function.__code__)), only_told(function.__code__) if exact else ()
        for place, step in enumerate(steps):
            name = str(step.argval)
            if step.opname not in ("LOAD_GLOBAL", "LOAD_NAME") or name not in function.__globals__ or name in told:
                continue
            value = function.__globals__[name]
            if exact:
                found |= _read_by_a_method(name, value, steps[place + 1 : place + 2])
                name, value = _followed(name, value, steps[place + 1 :])
            if exact and isinstance(value, types.FunctionType) and is_the_scripts(value):
                waiting.append((value, False))
            elif kinds and isinstance(value, kinds):
                found[name] = value
    return {name: value for name, value in found.items() if not (exact and name in written)}


def _read_by_a_method(name: str, value: Any, steps: Sequence[dis.Instruction]) -> dict[str, Any]:
    """Of an object of the script's that is asked by a method: `schedule.get()`."""
    called = {str(step.argval) for step in steps if step.opname in LOADS}
    if isinstance(value, (type, types.ModuleType, Dataset, torch.nn.Module)) or not is_the_scripts(type(value)):
        return {}
    read = read_by_methods(type(value), called)
    return {f"{name}.{each}": held for each, held in held_by(value).items() if each in read and not callable(held)}


def _followed(name: str, value: Any, steps: Sequence[dis.Instruction]) -> tuple[str, Any]:
    """What is read of an object that only holds settings, or of a module of the script's: `cfg.data.size`."""
    for step in steps:
        kind = value if isinstance(value, (type, types.ModuleType)) else type(value)
        settings = is_settings(value) or is_the_scripts(kind)
        if step.opname not in LOADS or not settings:
            break
        attribute = str(step.argval)
        name, held = f"{name}.{attribute}", {} if value is kind else held_by(value)
        entry = value.get(attribute) if isinstance(value, dict) else None
        value = held[attribute] if attribute in held else inspect.getattr_static(value, attribute, entry)
    return name, value


def functions_in(value: Any) -> list[types.FunctionType]:
    """The script's functions that a transform or a collate function is made of."""
    try:
        return _functions_in(value, 0)
    except Exception:  # whatever the object does when it is looked at
        return []


def _functions_in(value: Any, depth: int) -> list[types.FunctionType]:
    if isinstance(value, types.MethodType):
        return _functions_in(value.__func__, depth)
    if isinstance(value, types.FunctionType):
        return [value] if is_the_scripts(value) else []
    if isinstance(value, functools.partial):
        return _functions_in(value.func, depth)
    if isinstance(value, (type, Dataset)) or depth > _DEEPEST:
        return []
    found = reached(type(value), CALLED) if is_the_scripts(type(value)) else []
    within = value if isinstance(value, (list, tuple)) else getattr(value, "__dict__", {}).get("transforms")
    parts = list(within)[:_MOST_PARTS] if isinstance(within, (list, tuple, torch.nn.ModuleList)) else [within]
    return found + [each for part in parts if callable(part) for each in _functions_in(part, depth + 1)]


def read_by(collate_fn: Any) -> dict[str, Any]:
    """Numbers and texts that a collate function reads, and does not write: globals, around it, of its object."""
    functions = functions_in(collate_fn)
    found = globals_of(functions, exact=True)
    reads: set[str] = set()
    writes: set[str] = set()
    for function in functions:
        writes |= {name.rpartition(".")[2] for name in globals_written(function.__code__)}
        for step in instructions(function.__code__):
            if step.opname in ("STORE_ATTR", "STORE_DEREF"):
                writes.add(str(step.argval))
            elif step.opname in LOADS:
                reads.add(str(step.argval))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # nothing is in it yet
                found[name] = cell.cell_contents
    if isinstance(collate_fn, functools.partial):
        found |= {str(name): each for name, each in (*enumerate(collate_fn.args), *collate_fn.keywords.items())}
    of = getattr(collate_fn, "__self__", collate_fn)
    found |= {name: each for name, each in held_by(of).items() if name in reads}
    kept = {name: each for name, each in found.items() if name not in writes}
    return dict(pair for name, each in kept.items() for pair in _plain_in(name, each, reads - writes))


def _plain_in(name: str, value: Any, reads: Collection[str], depth: int = 0) -> Iterator[tuple[str, Any]]:
    """A number or a text, a few of them in a container; of settings and the script's objects, those that are read."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, set)) else [value]
    if len(parts) <= _MOST_PARTS and all(isinstance(each, _PLAIN) for each in parts):
        yield name, value
    elif is_settings(value) or (
        is_the_scripts(type(value)) and not isinstance(value, (type, Dataset, torch.nn.Module))
    ):
        for within in held_by(value).items() if depth < _DEEPEST else ():
            if within[0] in reads:
                yield from _plain_in(f"{name}.{within[0]}", within[1], reads, depth + 1)


def names_read(value: Any) -> frozenset[str]:
    """Names of all attributes that the code of a dataset or a collate function reads, or what it calls."""
    kinds: set[type] = set()
    functions: dict[types.FunctionType, None] = {}
    waiting, left = [value], _MOST_OBJECTS
    while waiting and left:
        each, left = waiting.pop(), left - 1
        functions |= dict.fromkeys(functions_in(each))
        kinds.add(type(each))
        waiting += _parts(each)
    own = (method for kind in kinds for method in _own_methods(kind))
    steps = [step for each in with_called([*functions, *own]) for step in instructions(each.__code__)]
    texts = (step for step in steps if step.opname in LOADS or step.opname == "LOAD_CONST")
    return frozenset(step.argval for step in texts if isinstance(step.argval, str))


def with_called(functions: Iterable[types.FunctionType]) -> list[types.FunctionType]:
    """These, and the script's functions that they call by a global name."""
    found = dict.fromkeys(functions)
    waiting = list(found)
    while waiting:
        function = waiting.pop()
        names = {str(step.argval) for step in instructions(function.__code__) if step.opname == "LOAD_GLOBAL"}
        called = [function.__globals__.get(name) for name in sorted(names)]
        modules = [each for each in called if isinstance(each, types.ModuleType) and is_the_scripts(each)]
        called += [each for module in modules for each in vars(module).values()]  # of one of which it calls something
        new = [each for each in called if isinstance(each, types.FunctionType) and is_the_scripts(each)]
        waiting += [each for each in new if each not in found]
        found |= dict.fromkeys(new)
    return list(found)


def _parts(value: Any) -> list[Any]:
    """What of a dataset or a transform may have code of its own; of a list its first ones stand for all."""
    try:
        if isinstance(value, functools.partial):
            return [*value.args, *value.keywords.values()]
        if isinstance(value, (list, tuple)):
            return list(value[: _MOST_OBJECTS if value and isinstance(value[0], Dataset) else _FIRST])
        if isinstance(value, dict):
            return list(itertools.islice(value.values(), _FIRST))
        if isinstance(value, Dataset) or (is_the_scripts(type(value)) and not isinstance(value, type)):
            return list(held_by(value).values())
    except Exception:  # whatever the object does when it is looked at
        pass
    return []


def _own_methods(kind: type) -> Iterable[types.FunctionType]:
    """A class's, but for those that Python calls by itself and no sample comes of."""
    for each in filter(is_the_scripts, kind.__mro__):
        for name, held in vars(each).items():
            method = function_of(held)
            if method and (name in (*SAMPLES, *CALLED) or not name.startswith("__")):
                yield method
