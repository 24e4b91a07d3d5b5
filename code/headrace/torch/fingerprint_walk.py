"""Goes through a value of a dataset and keeps a digest of what it is made of: `fingerprint` says what counts."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import hashlib
import os
import re
import types
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from headrace.torch.dataset_code import folder_of, held_by, is_a_table, is_omegaconfs, is_settings, is_the_scripts
from headrace.torch.fingerprint_look import MOST_WHOLE, PLAIN, Look, around, in_shared_memory, plain_of
from headrace.torch.fingerprint_tables import looked_at
from headrace.torch.own_generators import DRAWING, state_of
from headrace.torch.roughly import Reals

PLACES = 4096
"""Looked at, of a long array or list."""
MOST_SORTED = 500_000  # of larger sets and dicts only the size counts
DEEPEST = 6
VALUES_AT_ONCE = 8  # of an array, which cost as much as another object
MOST_SETTINGS = 200  # of a dict with more entries, or with other things in it, all count
_WHOLE_NUMBERS = (bool, int, type(None))
_REAL = (float, complex, np.floating, np.complexfloating)
_EXACT = (datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, enum.Enum, slice, torch.dtype, torch.Size)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_DEVICE = re.compile(r"(cuda|cpu|mps)(:\d+)?")
_DECIMALS = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?")


class Walk:
    """Goes through a value as far as its budget lets it; never raises."""

    def __init__(self, look: Look) -> None:
        self._digest, self._reals, self._look = hashlib.sha256(), Reals(), look
        self._folder = "-"
        """What the paths of the innermost list have in common."""
        self.opaque = False
        """Whether of the value itself only the type counts."""

    def told(self) -> str:
        """What was looked at, for `roughly.same`."""
        must, reals = self._reals.told()
        self._digest.update(must)
        return self._digest.hexdigest()[:16] + reals

    def add(self, value: Any, depth: int, in_list: bool = False) -> None:
        self._look.left -= 1
        self._text(type(value).__qualname__)
        if self._look.left < 0 or depth > DEEPEST:
            return
        try:
            known = self._add(value, depth, in_list)
        except Exception as error:  # whatever the object does when it is looked at
            known = False
            self._text(type(error).__qualname__)
        self.opaque |= not known and depth == 0

    def _add(self, value: Any, depth: int, in_list: bool) -> bool:
        if isinstance(value, _REAL) and not self._look.exact:
            self._reals.add_one(value)
        elif isinstance(value, (*_WHOLE_NUMBERS, *_REAL, *_EXACT, np.generic)):
            self._text(repr(value))
        elif isinstance(value, (str, os.PathLike)):
            self._text(self._as_elsewhere(str(value)))
        elif isinstance(value, (bytes, bytearray)):
            self._text(str(len(value)))
            self._digest.update(bytes(value[:: max(len(value) // (PLACES * 16), 1)]))
        elif isinstance(value, torch.Tensor):
            self._tensor(value)
        elif isinstance(value, np.ndarray):
            self._array(value, depth)
        elif isinstance(value, (list, tuple, range)):
            self._places(value, depth)
        elif isinstance(value, collections.deque) or is_omegaconfs(value, Sequence):
            self._places(list(value), depth)
        elif is_settings(value):
            self.add(self._look.counts(held_by(value), in_list), depth)
        elif isinstance(value, torch.nn.Module):
            self.add(value.state_dict(), depth)
            for part in value.modules() if self._look.exact else [value]:
                self.add(self._look.counts(plain_of(part) | {"training": None}, False), depth)
        elif isinstance(value, (set, frozenset, dict)) and len(value) > MOST_SORTED:
            self._text(str(len(value)))
        elif isinstance(value, (set, frozenset)):
            self._places(sorted(map(_plainly, value)), depth)
        elif isinstance(value, dict):
            settings = len(value) <= MOST_SETTINGS and all(isinstance(each, PLAIN) for each in value.values())
            told = self._look.counts(value, in_list or not settings)
            self._entries([(key, told[key]) for key in sorted(told, key=_plainly)], depth, not settings)
        elif isinstance(value, DRAWING):
            if self._look.of_stream:
                state = state_of(value)
                self._text(repr(state.tolist() if isinstance(state, torch.Tensor) else state))
            return self._look.of_stream
        elif self._look.of_stream and dataclasses.is_dataclass(value) and not isinstance(value, type):
            self.add(held_by(value), depth + 1)
        elif callable(value) and not isinstance(value, Dataset) and self._function(value, depth):
            pass
        elif (table := looked_at(value, MOST_WHOLE if self._look.exact else PLACES)) is not None:
            self._text(table[0])
            self.add(table[1], depth, in_list=True)
        elif self._look.exact and (shared := in_shared_memory(value)) is not None:
            self.add(shared, depth)
        elif type(value).__module__.partition(".")[0] == "torchvision":
            self._text(self._without_decimals(_plainly(value)))
        elif (held := held_by(value)) and (is_a_table(value) or is_the_scripts(type(value))):
            names = is_the_scripts(type(value))  # in a library's, texts may be what it calls itself
            left_out = self._look.written(value)
            for name, attribute in sorted(self._look.counts(held, in_list).items()):
                if name in left_out or (not names and "cache" in name):
                    continue
                if not isinstance(attribute, (str, bytes)) or (names and os.sep not in str(attribute)):
                    self._text(name)
                    self.add(attribute, depth + 1)
        else:
            transform = callable(value) and type(value).__module__ != "sqlite3"  # and not what was opened
            if transform and self._look.exact:
                self.add(plain_of(value), depth + 1)
            return transform
        return True

    def _as_elsewhere(self, text: str) -> str:
        """A text without what may be another one on another host or rank: the folder, the device, the host's name."""
        if self._look.exact:
            return text
        if _DEVICE.fullmatch(text) or text == os.environ.get("SM_CURRENT_HOST"):
            return ""
        if not os.path.isabs(text):
            return text
        within = text.removeprefix(self._folder)
        return within if within != text else os.sep.join(text.split(os.sep)[-2:])

    def _without_decimals(self, text: str) -> str:
        """What a transform says of itself, as the mean that it takes away; it may be this host's."""
        if self._look.exact:
            return text
        self._reals.add(np.array([float(each) for each in _DECIMALS.findall(text)]))
        return _DECIMALS.sub("", text)

    def _text(self, text: str) -> None:
        self._digest.update(text.encode(errors="surrogatepass") + b"\0")

    def _tensor(self, value: torch.Tensor) -> None:
        self._text(repr((value.dtype, tuple(value.shape))))
        if value.layout == torch.strided and value.device.type != "meta" and value.numel():
            value = value.detach()
            if value.dim() and not (value.device.type == "cpu" and self._look.takes_whole(value.nbytes)):
                places = np.arange(0, value.numel(), max(value.numel() // PLACES, 1))
                # By NumPy: torch's own unravel_index imports sympy, half a second of every start.
                value = value[tuple(map(torch.from_numpy, np.unravel_index(places, tuple(value.shape))))]
            value = value.cpu().reshape(-1).contiguous()
            if value.is_complex():
                value = torch.view_as_real(value)
            if value.is_floating_point() and not self._look.exact:
                self._look.left -= value.numel() // VALUES_AT_ONCE
                self._reals.add((value if value.dtype == torch.float64 else value.float()).numpy())
            else:
                self._bytes(value.view(torch.uint8).numpy(), value.numel())

    def _array(self, value: np.ndarray[Any, Any], depth: int) -> None:
        self._text(repr((value.dtype, value.shape)))
        whole = self._look.takes_whole(value.nbytes)
        sampled = value.reshape(-1) if whole else value.flat[:: max(value.size // PLACES, 1)]
        if value.dtype.hasobject:
            self._places(sampled.tolist(), depth)
        elif value.dtype.kind in "fc" and not self._look.exact:
            self._look.left -= sampled.size // VALUES_AT_ONCE
            self._reals.add(sampled)
        else:
            self._bytes(sampled, sampled.size)

    def _bytes(self, values: np.ndarray[Any, Any], count: int) -> None:
        self._look.left -= min(count, PLACES) // VALUES_AT_ONCE
        self._digest.update(values.tobytes())

    def _places(self, values: Sequence[Any], depth: int) -> None:
        self._text(str(len(values)))
        if len(values) > PLACES and (whole := self._look.list_whole(values)) is not None:
            self._digest.update(whole)
            return
        looked_at = values[:: max(len(values) // PLACES, 1)]
        outer, self._folder = self._folder, folder_of(looked_at) or self._folder
        for value in looked_at:
            self.add(value, depth + 1, in_list=True)
        self._folder = outer

    def _entries(self, entries: list[tuple[Any, Any]], depth: int, in_list: bool) -> None:
        """Of a dict, in an order that does not depend on how it was filled."""
        if len(entries) > PLACES and (whole := self._look.list_whole(entries)) is not None:
            self._digest.update(whole)
            return
        for key, value in entries[:: max(len(entries) // PLACES, 1)]:
            self.add(key, depth + 1)
            self.add(value, depth + 1, in_list=in_list)

    def _function(self, value: Any, depth: int) -> bool:
        """Whether it is one; with what it holds, which may be a vocabulary, or another transform."""
        if isinstance(value, (type, types.BuiltinFunctionType)):
            held: Iterable[Any] = ()
        elif isinstance(value, functools.partial):
            held = (value.func, *value.args, *(part for pair in sorted(value.keywords.items()) for part in pair))
        elif isinstance(value, types.MethodType):  # its object may be a trainer, with the model and this rank's number
            held = (value.__func__, type(value.__self__))
        elif isinstance(value, types.FunctionType):
            held = (value.__defaults__, *map(around(value), value.__closure__ or ()))
            self._digest.update(value.__code__.co_code)
            self._text(
                repr(
                    [
                        each
                        for each in value.__code__.co_consts
                        if isinstance(each, (*_WHOLE_NUMBERS, float, complex, str))
                    ]
                )
            )
        else:
            return False
        self._text(getattr(value, "__qualname__", ""))
        for each in held:
            self.add(each, depth + 1)
        return True


def _plainly(value: Any) -> str:
    return _ADDRESS.sub("", repr(value))
