"""What a dataset's own code reads while it makes a sample, as its bytecode tells; where its files are."""

from __future__ import annotations

import argparse
import dis
import itertools
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
_HOLDING = (list, tuple, dict, set, frozenset, np.ndarray, torch.Tensor)
"""Kinds of globals that are data, and not a rank's own number."""


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
        found |= {f"global {name}": each for name, each in globals_of_samples(type(value), exact).items()}
    return found


def globals_of_samples(kind: type, exact: bool) -> dict[str, Any]:
    """Data among the script's globals that samples are made of; of parsed arguments, those that are read."""
    found: dict[str, Any] = {}
    kinds = (*_HOLDING, bool, int, float, str) if exact else _HOLDING
    for method in reached(kind, SAMPLES):
        steps = list(instructions(method.__code__))
        for step, following in itertools.pairwise(steps):
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                value = method.__globals__.get(step.argval)
                if isinstance(value, kinds):
                    found[step.argval] = value
                elif exact and isinstance(value, (argparse.Namespace, types.SimpleNamespace)):
                    found[f"{step.argval}.{following.argval}"] = getattr(value, str(following.argval), None)
    return found


def folder_of(values: Sequence[Any]) -> str:
    """The folder in which all paths of a list, or of tuples in it, lie; empty where there are none."""
    parts = (part for value in values for part in (value if isinstance(value, tuple) else (value,)))
    paths = [str(part) for part in parts if isinstance(part, (str, os.PathLike)) and os.sep in str(part)]
    try:
        return os.path.commonpath([os.path.dirname(path) for path in paths]) + os.sep
    except ValueError:  # none, or some are relative
        return ""


def is_the_scripts(kind: type) -> bool:
    """Whether a class is neither Python's nor a library's."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    return kind.__module__ == "__main__" or (bool(file) and not file.startswith(_LIBRARIES))


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
