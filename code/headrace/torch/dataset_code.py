"""Which code is the script's and not a library's, what of it makes samples; where a dataset's files are."""

from __future__ import annotations

import dis
import os
import sys
import sysconfig
import types
from collections.abc import Iterator, Sequence
from typing import Any

from torch.utils.data import Dataset

_LIBRARIES = tuple(dict.fromkeys(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")))
SAMPLES = ("__getitem__", "__getitems__", "__len__", "__iter__", "__next__")
CALLED = ("__call__", "forward")
LOADS = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")


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
    module = kind.__name__ if isinstance(kind, types.ModuleType) else str(getattr(kind, "__module__", ""))
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
    """These methods of a class and its bases, and its others that they call."""
    found: dict[types.FunctionType, None] = {}
    seen: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        # A method of a base too: super() may call it.
        for method in filter(None, (function_of(vars(each).get(name)) for each in kind.__mro__)):
            found[method] = None
            waiting += [str(step.argval) for step in instructions(method.__code__) if step.opname in LOADS]
    return list(found)


def function_of(held: Any) -> types.FunctionType | None:
    """What a class holds under a name as a function: of a property, or below a decorator."""
    held = getattr(held, "fget", None) or getattr(held, "__func__", held)
    below = held
    while isinstance(below, types.FunctionType):
        held, below = below, vars(below).get("__wrapped__")
    return held if isinstance(held, types.FunctionType) else None


def instructions(code: types.CodeType) -> Iterator[dis.Instruction]:
    """Those of functions within, too."""
    yield from (step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG")
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from instructions(each)
