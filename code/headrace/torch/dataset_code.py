"""Which code is the script's and not a library's, what of it makes samples; where a dataset's files are."""

from __future__ import annotations

import argparse
import contextlib
import dis
import functools
import os
import sys
import sysconfig
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import Dataset

_LIBRARIES = tuple(dict.fromkeys(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")))
_INSTALLED = ("site-packages", "dist-packages")
"""Folders of libraries, wherever they are: a user's own, or Debian's."""
SAMPLES = ("__getitem__", "__getitems__", "__len__", "__iter__", "__next__")
CALLED = ("__call__", "forward")
LOADS = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")
_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME")


def folder_of(values: Sequence[Any]) -> str:
    """The folder in which all paths of a list, or of tuples in it, lie; empty where there are none."""
    parts = (part for value in values for part in (value if isinstance(value, tuple) else (value,)))
    paths = [str(part) for part in parts if isinstance(part, (str, os.PathLike)) and os.sep in str(part)]
    try:
        return os.path.commonpath([os.path.dirname(path) for path in paths]) + os.sep
    except ValueError:  # none, or some are relative
        return ""


def is_the_scripts(kind: type | types.FunctionType | types.ModuleType) -> bool:
    """Whether a class, a function or a module is neither Python's nor a library's; headrace lies beside scripts."""
    module = kind.__name__ if isinstance(kind, types.ModuleType) else str(getattr(kind, "__module__", ""))
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    if module.partition(".")[0] == "headrace":
        return False
    return module == "__main__" or (bool(file) and not is_a_librarys_file(file))


def is_a_librarys_file(file: str) -> bool:
    """Whether code lies among Python's own or installed."""
    return file.startswith(_LIBRARIES) or any(f"{os.sep}{name}{os.sep}" in file for name in _INSTALLED)


def is_a_librarys_own(holder: type, name: str) -> bool:
    """What Hugging Face notes of a process or a host: open file systems, and a digest that file times are part of."""
    owners = (kind for kind in holder.__mro__ if name.startswith(f"_{kind.__name__.lstrip('_')}__"))
    if name == "_fingerprint":
        owners = (kind for kind in holder.__mro__ if kind.__module__.startswith("datasets."))
    return ("cache" in name or name == "_fingerprint") and not all(map(is_the_scripts, owners))


def is_a_table(value: Any) -> bool:
    """Whether samples may come of it; what stands for another process's object is none."""
    rows = callable(getattr(value, "__getitem__", None)) and callable(getattr(value, "__len__", None))
    elsewhere = type(value).__module__.partition(".")[0] == "multiprocessing"
    return (rows and not elsewhere) or isinstance(value, Dataset)


def is_settings(value: Any) -> bool:
    """Whether an object only holds settings under names: parsed arguments, a namespace, OmegaConf's."""
    return isinstance(value, (argparse.Namespace, types.SimpleNamespace)) or is_omegaconfs(value, Mapping)


def is_omegaconfs(value: Any, kind: type) -> bool:
    """Whether it is OmegaConf's mapping, or sequence."""
    return type(value).__module__.startswith("omegaconf.") and isinstance(value, kind)


def held_by(value: Any) -> dict[str, Any]:
    """What an object holds under names: its attributes, those in slots too; the settings of OmegaConf's."""
    found: dict[str, Any] = {}
    if is_omegaconfs(value, Mapping):
        for name in value:
            found[name] = None
            with contextlib.suppress(Exception):  # it is missing, or refers to what is
                found[name] = value[name]
        return found
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            private = name.startswith("__") and not name.endswith("__")
            known = f"_{kind.__name__.lstrip('_')}{name}" if private else name
            if name not in ("__dict__", "__weakref__") and hasattr(value, known):
                found[known] = getattr(value, known)
    return found | getattr(value, "__dict__", {})


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
            waiting += own_names(method, kind)
    return list(found)


def own_names(method: types.FunctionType, kind: type) -> Iterator[str]:
    """Attributes that a method reads of its own object or class, or of `super()`.

    Not those of other variables and of attributes: the `update` of a dictionary is none of the class's methods.
    """
    code = method.__code__
    own = code.co_varnames[0] if code.co_argcount else ""
    before, of, called = "", None, ""
    for step in instructions(code):
        two = "LOAD_FAST" in step.opname and isinstance(step.argval, tuple)  # as 3.13 loads them
        name = step.argval[-1] if two else step.argval
        if step.opname in LOADS:
            of_itself = ("LOAD_FAST" in before or before == "LOAD_DEREF") and of == own
            of_class = before in _GLOBALS and _is_one_of(method.__globals__.get(str(of)), kind.__mro__)
            handed_out = before.startswith("CALL") and called in ("super", "type")
            if of_itself or of_class or handed_out or of == "__class__" or step.opname == "LOAD_SUPER_ATTR":
                yield str(name)
        if step.opname in _GLOBALS and not _is_one_of(method.__globals__.get(str(name)), kind.__mro__):
            called = str(name)
        before, of = step.opname, name


def _is_one_of(value: Any, kinds: Sequence[type]) -> bool:
    """By identity: an array compares each of its elements."""
    return any(value is each for each in kinds)


def read_by_methods(kind: type, names: Collection[str]) -> set[str]:
    """Attributes that those methods of a class read which have one of these names, and do not write."""
    read: set[str] = set()
    written: set[str] = set()
    for method in reached(kind, tuple(names)):
        for step in instructions(method.__code__):
            if step.opname in LOADS:
                read.add(str(step.argval))
            elif step.opname == "STORE_ATTR":
                written.add(str(step.argval))
    return read - written


def function_of(held: Any) -> types.FunctionType | None:
    """What a class holds under a name as a function: of a property, below a decorator or a cache."""
    held = getattr(held, "fget", None) or getattr(held, "func", None) or getattr(held, "__func__", held)
    below = held
    while isinstance(below, (types.FunctionType, functools._lru_cache_wrapper)):
        held, below = below, vars(below).get("__wrapped__")
    return held if isinstance(held, types.FunctionType) else None


def instructions(code: types.CodeType) -> Iterator[dis.Instruction]:
    """Those of functions within, too."""
    yield from (step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG")
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from instructions(each)
