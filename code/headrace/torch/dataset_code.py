"""What a dataset's own code, or a collate function's, reads while it makes a batch; where a dataset's files are."""

from __future__ import annotations

import argparse
import contextlib
import dis
import functools
import inspect
import os
import sys
import sysconfig
import types
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

_LIBRARIES = tuple(dict.fromkeys(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")))
SAMPLES = ("__getitem__", "__getitems__", "__len__", "__iter__", "__next__")
_CALLED = ("__call__", "forward")
_HOLDING = (list, tuple, dict, set, frozenset, np.ndarray, torch.Tensor)
"""Kinds of globals that are data, and not a rank's own number."""
_PLAIN = (bool, int, float, str, tuple, type(None))
FILLING = {"append", "add", "setdefault", "update", "extend", "insert", "pop", "popitem", "move_to_end", "put",
           "clear", "remove", "discard", "sort", "reverse", "appendleft", "popleft", "fill"}  # fmt: skip
"""Methods of containers that change them."""
_DEEPEST, _MOST_PARTS = 3, 100


def from_its_class(value: Any, exact: bool = False) -> dict[str, Any]:
    """What the script's classes give their objects, and what of the script's globals makes samples.

    Args:
        exact: numbers and texts among the globals too, which may differ between ranks, but not within a process.
    """
    found: dict[str, Any] = {}
    for kind in reversed(type(value).__mro__):
        if is_the_scripts(kind):
            found |= {
                name: each
                for name, each in vars(kind).items()
                if not name.startswith("__") and not callable(each) and not hasattr(each, "__get__")
            }
    if is_the_scripts(type(value)):
        read = globals_of_samples(type(value), exact)
        if exact:
            read |= globals_of(functions_in(list(getattr(value, "__dict__", {}).values())), exact)
        found |= {f"global {name}": each for name, each in read.items()}
    return found


def globals_of_samples(kind: type, exact: bool) -> dict[str, Any]:
    """Data among the script's globals that a class's samples are made of; see `globals_of`."""
    return globals_of(reached(kind, SAMPLES), exact)


def globals_of(functions: Sequence[types.FunctionType], exact: bool) -> dict[str, Any]:
    """Data among the script's globals that these functions read.

    Args:
        exact: numbers and texts too, those that the script's classes, modules and parsed arguments hold, and what
            functions read that these call; not what any of them writes, as a counter or a cache is.
    """
    found: dict[str, Any] = {}
    written: set[str] = set()
    seen: set[types.FunctionType] = set()
    waiting = [(each, True) for each in functions]
    while waiting:
        function, given = waiting.pop()
        if function in seen:
            continue
        seen.add(function)
        steps = list(instructions(function.__code__))
        written |= {str(step.argval) for step in steps if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")}
        fills = exact and _fills(steps)
        for place, step in enumerate(steps):
            name = str(step.argval)
            if step.opname not in ("LOAD_GLOBAL", "LOAD_NAME") or name not in function.__globals__:
                continue
            value = function.__globals__[name]
            if exact:
                name, value = _followed(name, value, steps[place + 1 :])
            if exact and isinstance(value, types.FunctionType) and is_the_scripts(value):
                waiting.append((value, False))
            elif isinstance(value, (*(_HOLDING if given and not fills else ()), *(_PLAIN if exact else ()))):
                found[name] = value
    return {name: value for name, value in found.items() if name not in written}


@functools.cache
def names_read(kind: type) -> frozenset[str]:
    """Names of all attributes that a class's samples are made of, also by the script's functions that it calls."""
    found: set[str] = set()
    seen: set[types.FunctionType] = set()
    waiting = reached(kind, (*SAMPLES, *_CALLED))
    while waiting:
        function = waiting.pop()
        seen.add(function)
        for step in instructions(function.__code__):
            if step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                found.add(str(step.argval))
            called = function.__globals__.get(str(step.argval)) if step.opname == "LOAD_GLOBAL" else None
            if isinstance(called, types.FunctionType) and is_the_scripts(called) and called not in seen:
                waiting.append(called)
    return frozenset(found)


def _followed(name: str, value: Any, steps: Sequence[dis.Instruction]) -> tuple[str, Any]:
    """What is read of an object that only holds settings, or of a module of the script's: `cfg.data.size`."""
    for step in steps:
        kind = value if isinstance(value, (type, types.ModuleType)) else type(value)
        settings = isinstance(value, (argparse.Namespace, types.SimpleNamespace)) or is_the_scripts(kind)
        if step.opname not in ("LOAD_ATTR", "LOAD_METHOD") or not settings:
            break
        name, value = f"{name}.{step.argval}", inspect.getattr_static(value, str(step.argval), None)
    return name, value


def functions_in(value: Any, depth: int = 0) -> list[types.FunctionType]:
    """The script's functions that a transform or a collate function is made of."""
    if isinstance(value, types.MethodType):
        return functions_in(value.__func__, depth)
    if isinstance(value, types.FunctionType):
        return [value]
    if isinstance(value, functools.partial):
        return functions_in(value.func, depth)
    if isinstance(value, type) or depth > _DEEPEST:
        return []
    within = value if isinstance(value, (list, tuple)) else getattr(value, "__dict__", {}).get("transforms", ())
    found = [each for part in list(within)[:_MOST_PARTS] for each in functions_in(part, depth + 1)]
    return found + (reached(type(value), _CALLED) if is_the_scripts(type(value)) else [])


def read_by(collate_fn: Any) -> dict[str, Any]:
    """Numbers and texts that a collate function reads: of globals, of what is around it, of its object."""
    found = globals_of(functions_in(collate_fn), exact=True)
    for function in functions_in(collate_fn):
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # nothing is in it yet
                found[name] = cell.cell_contents
    if isinstance(collate_fn, functools.partial):
        found |= {str(name): each for name, each in (*enumerate(collate_fn.args), *collate_fn.keywords.items())}
    of = getattr(collate_fn, "__self__", collate_fn)
    reads: set[str] = set()
    writes: set[str] = set()
    for function in functions_in(collate_fn):
        for step in instructions(function.__code__):
            (writes if step.opname == "STORE_ATTR" else reads).add(str(step.argval))
    found |= {name: each for name, each in getattr(of, "__dict__", {}).items() if name in reads - writes}
    return {name: each for name, each in found.items() if isinstance(each, _PLAIN)}


def _fills(steps: Sequence[dis.Instruction]) -> bool:
    """Whether some container is changed there."""
    return any(
        step.opname in ("STORE_SUBSCR", "DELETE_SUBSCR")
        or (step.opname in ("LOAD_ATTR", "LOAD_METHOD") and step.argval in FILLING)
        for step in steps
    )


def folder_of(values: Sequence[Any]) -> str:
    """The folder in which all paths of a list, or of tuples in it, lie; empty where there are none."""
    parts = (part for value in values for part in (value if isinstance(value, tuple) else (value,)))
    paths = [str(part) for part in parts if isinstance(part, (str, os.PathLike)) and os.sep in str(part)]
    try:
        return os.path.commonpath([os.path.dirname(path) for path in paths]) + os.sep
    except ValueError:  # none, or some are relative
        return ""


def is_the_scripts(kind: type | types.FunctionType | types.ModuleType) -> bool:
    """Whether a class, a function or a module is neither Python's nor a library's."""
    module = str(getattr(kind, "__module__", None) or getattr(kind, "__name__", ""))
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return module == "__main__" or (bool(file) and not file.startswith(_LIBRARIES))


def is_a_librarys_cache(holder: type, name: str) -> bool:
    """Such as Hugging Face's of open file systems, whose keys have the process in them."""
    owners = (kind for kind in holder.__mro__ if name.startswith(f"_{kind.__name__.lstrip('_')}__"))
    return "cache" in name and not all(map(is_the_scripts, owners))


def is_a_table(value: Any) -> bool:
    """Whether samples may come of it; what stands for another process's object is none."""
    rows = callable(getattr(value, "__getitem__", None)) and callable(getattr(value, "__len__", None))
    elsewhere = type(value).__module__.partition(".")[0] == "multiprocessing"
    return (rows and not elsewhere) or isinstance(value, Dataset)


def reached(kind: type, names: tuple[str, ...]) -> list[types.FunctionType]:
    """These methods of a class, and its others that they call."""
    found: dict[str, types.FunctionType] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        method = getattr(kind, name, None)
        if name not in found and isinstance(method, types.FunctionType):
            found[name] = method
            waiting += [
                str(step.argval)
                for step in instructions(method.__code__)
                if step.opname in ("LOAD_ATTR", "LOAD_METHOD")
            ]
    return list(found.values())


def instructions(code: types.CodeType) -> Iterator[dis.Instruction]:
    """Those of functions within, too."""
    yield from dis.get_instructions(code)
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from instructions(each)
