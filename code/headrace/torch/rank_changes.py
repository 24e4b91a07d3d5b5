"""What a script changes on one rank once training has begun, and its samples are made of: cheap at each epoch.

Of a shared loader each rank has a part, so a mean of its batches is another one on each rank. Only what is another
object, number or array than when the first batch was asked for is looked at: not what a long list or dict holds.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import sys
import types
import weakref
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from headrace.torch import registry
from headrace.torch.code_reads import data_of_classes, functions_in, with_called
from headrace.torch.dataset_code import SAMPLES, held_by, instructions, is_a_librarys_own, is_the_scripts, reached
from headrace.torch.dataset_epochs import datasets_within
from headrace.torch.dataset_writes import globals_written, kept_by_properties, only_told, written_while_training
from headrace.torch.fingerprint import told
from headrace.torch.fingerprint_look import plain_of
from headrace.torch.noted import noted

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_NUMBERS = (float, torch.Tensor, np.ndarray)
"""Kinds of globals that are compared; a dict may be a cache."""
_MANY = (list, tuple, dict, set, frozenset, collections.deque)
_MOST_LOOKED_AT, _MOST_DATASETS, _DEEPEST = 1 << 10, 20, 3
_had: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_globals: dict[tuple[str, str], str] = {}
"""The numbers and arrays of the script's modules, by module and name, when the first batch was asked for."""


def as_it_is(loader: Any) -> dict[str, str]:
    """What makes its samples, in brief, for `changed`."""
    if not _globals:
        _globals[("", "")] = "noted"
        modules = [each for each in list(sys.modules.values()) if isinstance(each, types.ModuleType)]
        for module in filter(is_the_scripts, modules):
            for name, value in list(vars(module).items()):
                if isinstance(value, _NUMBERS):
                    _globals[(module.__name__, name)] = _brief(value)
    return {"type": type(loader.dataset).__qualname__, **{name: _brief(each) for name, each in _held(loader.dataset)}}


def changed(loader: Any) -> dict[str, dict[str, str]]:
    """What has changed since the first batch, as it is now, for `alike.differing`."""
    before = loader.at_first_batch
    own = {name: value for name, value in _held(loader.dataset) if before.get(name, "") not in ("", _brief(value))}
    of_no_sample = noted(own, loader.dataset, loader.collate_fn, loader.worker_init_fn) if own else []
    own |= {f"global {name}": value for name, value in _globals_changed(loader)}
    return {"made_of": {name: told(own[name], loader.dataset) for name in set(own) - set(of_no_sample)}}


def forget() -> None:
    """As before the first batch."""
    _globals.clear()
    _had.clear()


def may_have_made(dataset: Any) -> bool:
    """Whether it, or a dataset within, had a loader before, and samples have been made; now it has one."""
    within = datasets_within(dataset)
    found = any(_had.get(id(each)) is each for each in within)
    for each in within:
        with contextlib.suppress(TypeError):  # of a type that knows no weak references
            _had[id(each)] = each
    return found and registry.Serving.begun


def _held(dataset: Any) -> Iterator[tuple[str, Any]]:
    """Attributes of a dataset and of those within, but for those that it writes while it makes samples."""
    waiting = collections.deque([("", dataset)])
    for _ in range(_MOST_DATASETS):
        if not waiting:
            return
        path, each = waiting.popleft()
        kind: Any = type(each)
        left_out = written_while_training(kind) | kept_by_properties(kind)
        for name, value in (data_of_classes(kind) | held_by(each)).items():
            if isinstance(value, Dataset):
                waiting.append((f"{path}{name}.", value))
            elif name not in left_out and not is_a_librarys_own(kind, name):
                yield path + name, value


def _globals_changed(loader: Any) -> Iterator[tuple[str, Any]]:
    makers = [loader.dataset, *(value for _, value in _held(loader.dataset)), loader.collate_fn]
    given = [each for maker in makers for each in functions_in(maker)] + reached(type(loader.dataset), SAMPLES)
    functions = with_called(each for each in given if is_the_scripts(each))
    written = {name for each in functions for name in globals_written(each.__code__)}
    for function in functions:
        names = {str(step.argval) for step in instructions(function.__code__) if step.opname == "LOAD_GLOBAL"}
        for name in sorted(names - written - only_told(function.__code__)):
            value = function.__globals__.get(name)
            known = _globals.get((str(function.__globals__.get("__name__")), name))
            if isinstance(value, _NUMBERS) and _brief(value) != known:
                yield name, value


def _brief(value: Any, depth: int = 0) -> str:
    """Another text where a value has changed, as far as that is cheap to see."""
    try:
        return _briefly(value, depth)
    except Exception as error:  # whatever the object does when it is looked at
        return f"{type(value).__qualname__} {type(error).__qualname__}"


def _briefly(value: Any, depth: int) -> str:
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, torch.Tensor):
        if value.device.type != "cpu":
            return f"{value.device} {id(value)} {value._version}"
        return _brief(value.detach().reshape(-1)[:_MOST_LOOKED_AT].numpy()) + str(tuple(value.shape))
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        first = np.ascontiguousarray(value.reshape(-1)[:_MOST_LOOKED_AT])
        return f"{value.dtype} {value.shape} {zlib.crc32(first.tobytes())}"
    if isinstance(value, _MANY):
        return f"{type(value).__qualname__} {id(value)} {len(value)}"
    parts: dict[str, Any] = {}
    if isinstance(value, functools.partial):
        parts = {"func": value.func, **{str(place): each for place, each in enumerate(value.args)}, **value.keywords}
    elif isinstance(value, types.FunctionType):
        parts = {str(place): cell.cell_contents for place, cell in enumerate(value.__closure__ or ())}
    elif is_the_scripts(type(value)):
        kind: Any = type(value)
        left_out = written_while_training(kind)
        parts = {name: each for name, each in held_by(value).items() if name not in left_out}
    elif callable(value) and not isinstance(value, (type, types.MethodType)):
        transform = plain_of(value)
        parts = {str(place): each for place, each in enumerate(transform.pop("transforms", ()))} | transform
    within = {name: _brief(each, depth + 1) for name, each in parts.items()} if depth < _DEEPEST else {}
    return f"{type(value).__qualname__} {'' if within else id(value)} {within}"
