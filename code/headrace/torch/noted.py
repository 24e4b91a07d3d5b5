"""What the training loop notes on a dataset and no sample is made of: the losses so far, whose the dataset is.

All code of the script's is gone through that making a sample or a batch may come to: from methods to the functions that
they call, and to what lies under the names that they read. What none of it names, no sample reads. It is said only
where that is certain: code that reads attributes by a name that it makes (`getattr`), or a library's kind of dataset,
leaves everything in doubt.
"""

from __future__ import annotations

import collections
import contextlib
import dis
import functools
import itertools
import re
import sys
import types
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from headrace.torch.dataset_code import CALLED, LOADS, SAMPLES, held_by, instructions, is_the_scripts

_BY_A_NAME = {"getattr", "vars", "dir", "eval", "exec", "globals", "locals", "replace"}
_BY_ITS_NAME = {"attrgetter", "methodcaller", "getmembers", "asdict", "astuple", "dumps", "__dict__",
                "__getattribute__"}  # fmt: skip
"""What reads attributes that the code around it does not name; the second, also as an attribute of a module."""
_NO_SAMPLES = {"__init__", "__repr__", "__str__", "__del__", "__getstate__", "__setstate__", "__reduce__",
               "__reduce_ex__"}  # fmt: skip
"""What Python calls by itself, but not where a sample is made of an object that is there."""
_TORCHS = "torch.utils.data"
"""Its code is gone through as the script's: `Subset` reads its `indices`."""
_READ_NOTHING = ("builtins", "typing", "abc", "collections.abc")
"""Where other bases of a dataset may come from."""
_PLAIN = (bool, int, float, complex, str, bytes, bytearray, type(None), torch.Tensor, range)
_MOST_OBJECTS, _ALIKE, _MOST_DOTS = 5000, 100, 6
"""Gone through; and of one type in a container, the rest of which are taken to be like them."""


def noted(changed: Iterable[str], dataset: Any, *others: Any) -> list[str]:
    """Which of these attributes no code reads that makes samples.

    Args:
        changed: dotted names, for datasets within the dataset.
        others: what is called besides: a collate function.
    """
    asked = [name for name in changed if _of_a_dataset(name, dataset)]
    if not asked:
        return []
    code = _Code((dataset, *others))
    return [name for name in asked if code.names_all and name.rpartition(".")[2] not in code.names]


def _of_a_dataset(name: str, dataset: Any) -> bool:
    """Whether it is a dataset's own attribute, and none of something else that it holds."""
    *way, last = name.split(".")
    for each in way:
        dataset = held_by(dataset).get(each)
    return isinstance(dataset, Dataset) and last in held_by(dataset)


class _Code:
    """The script's code that these objects may come to.

    Attributes:
        names: all that it may read attributes by.
        names_all: whether it names what it reads.
    """

    def __init__(self, makers: Sequence[Any]) -> None:
        self.names: set[str] = {*SAMPLES, *CALLED, "set_epoch"}
        self.names_all = True
        self._under: collections.defaultdict[str, list[Any]] = collections.defaultdict(list)
        """Not gone through, as nothing reads these names yet."""
        self._waiting: list[Any] = list(makers)
        seen: dict[int, Any] = {}
        while self._waiting and self.names_all:
            each = self._waiting.pop()
            if id(each) not in seen and not isinstance(each, _PLAIN):
                seen[id(each)] = each
                try:
                    self._go_through(each)
                except Exception:  # whatever the object does when it is looked at
                    self.names_all = False
            self.names_all &= len(seen) < _MOST_OBJECTS
            for name in self.names & self._under.keys():
                self._waiting += self._under.pop(name)

    def _go_through(self, value: Any) -> None:
        own = _has_known_code(value if isinstance(value, (type, types.FunctionType, types.ModuleType)) else type(value))
        if isinstance(value, types.FunctionType):
            self._function(value, own)
        elif isinstance(value, types.MethodType):
            self._waiting += [value.__func__, value.__self__]
        elif isinstance(value, property):
            self._waiting.append(value.fget)
        elif isinstance(value, (staticmethod, classmethod)):
            self._waiting.append(value.__func__)
        elif isinstance(value, functools.partial):
            self._waiting += [value.func, *value.args, *value.keywords.values()]
        elif isinstance(value, (type, types.ModuleType)):
            if own:
                self._held(vars(value), at_once="__" if isinstance(value, type) else None)
        elif isinstance(value, np.ndarray):
            self._waiting += _some(value.reshape(-1).tolist()) if value.dtype.hasobject else []
        elif isinstance(value, dict):
            self._waiting += _some(value.values())
        elif isinstance(value, (list, tuple, set, frozenset, collections.deque)):
            self._waiting += _some(value)
        if not isinstance(value, (type, types.FunctionType, types.ModuleType)):
            self._object(value, own)

    def _object(self, value: Any, own: bool) -> None:
        kinds = type(value).__mro__
        for kind in filter(_has_known_code, kinds):
            methods = vars(kind).items()
            called = {name: each for name, each in methods if name not in _NO_SAMPLES and not _generated(each)}
            self._held(called, at_once="__")
        if isinstance(value, Dataset):
            self.names_all &= all(_has_known_code(each) or each.__module__ in _READ_NOTHING for each in kinds)
        # A library's own code may read all that its objects hold.
        self._held(held_by(value), at_once=None if own else "")

    def _held(self, held: Any, at_once: str | None) -> None:
        """Values under names, to be gone through once one is read; those of this prefix at once."""
        for name, each in dict(held).items():
            if at_once is not None and name.startswith(at_once):
                self._waiting.append(each)
            else:
                self._under[name].append(each)

    def _function(self, function: types.FunctionType, own: bool) -> None:
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # nothing is in it yet
                self._waiting.append(cell.cell_contents)
        self._waiting += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        self._waiting += vars(function).values()  # what a decorator wraps
        steps = list(instructions(function.__code__)) if own else []
        for place, step in enumerate(steps):
            name = step.argval
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                self._waiting.append(function.__globals__.get(name))
                named = name == "getattr" and _is_constant(steps[place + 1 :])
                self.names_all &= named or name not in _BY_A_NAME | _BY_ITS_NAME
            elif step.opname == "IMPORT_NAME":
                self._waiting.append(sys.modules.get(name))
            elif step.opname in (*LOADS, "IMPORT_FROM"):
                self.names.add(name)
                self.names_all &= name not in _BY_ITS_NAME
            elif step.opname == "LOAD_CONST":
                texts = name if isinstance(name, (tuple, frozenset)) else (name,)
                self.names |= {word for text in texts if isinstance(text, str) for word in re.findall(r"\w+", text)}


def _has_known_code(kind: type | types.FunctionType | types.ModuleType) -> bool:
    module = kind.__name__ if isinstance(kind, types.ModuleType) else str(getattr(kind, "__module__", ""))
    return module.startswith(_TORCHS) or is_the_scripts(kind)


def _generated(value: Any) -> bool:
    """Whether it is a method that dataclasses or attrs have written, which compares or shows all fields."""
    return isinstance(value, types.FunctionType) and value.__code__.co_filename.startswith("<")


def _is_constant(steps: Iterable[dis.Instruction]) -> bool:
    """Whether these load an object and a text: `getattr(self.file, "name", None)`."""
    first, *rest = [each.opname for each in itertools.islice(steps, _MOST_DOTS)]
    after = next((name for name in rest if name != "LOAD_ATTR"), "")
    return first in ("LOAD_FAST", "LOAD_DEREF", "LOAD_GLOBAL") and after == "LOAD_CONST"


def _some(values: Iterable[Any]) -> list[Any]:
    """What may have code among a container's; of each type the first ones stand for all."""
    found: list[Any] = []
    of_type: collections.Counter[type] = collections.Counter()
    for each in values:
        of_type[type(each)] += 1
        if not isinstance(each, _PLAIN) and of_type[type(each)] <= _ALIKE:
            found.append(each)
    return found
