"""What the script itself tells its samplers and datasets by `set_epoch`: it counts until the script says otherwise.

A stage of a curriculum, or the epoch at which a run goes on, may have any name within the object. So the calls are
listened to.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from headrace.errors import InputError

Told = list[Any] | None
"""A list of the only value that the script told; None: it told none, and the object is told the loader's epoch."""
_PLAIN = (bool, int, float, str, type(None))
_own = threading.local()


@dataclass(frozen=True)
class Said:
    """The script's last word to one object."""

    times: int
    value: Any


_said: dict[int, tuple[Callable[[], Any], Said]] = {}
"""By the object's id, with a reference to it: another one may have the id of one that is gone."""


def listen(told: Any) -> None:
    """From now on, what the script tells this object is known, and all others of its class."""
    for kind in type(told).__mro__:
        method = vars(kind).get("set_epoch")
        if isinstance(method, types.FunctionType) and not hasattr(method, "headrace_listens"):
            with contextlib.suppress(TypeError):  # a class that cannot be changed
                setattr(kind, "set_epoch", _listening(method))  # noqa: B010


def said_to(told: Any) -> Said | None:
    """The script's last word to it; None: there was none since it is listened to."""
    of, said = _said.get(id(told), (None, None))
    return said if of and of() is told else None


def told_to(told: Any) -> Told:
    """The same, for an order. Raises `InputError` for what is no number or text."""
    said = said_to(told)
    if said is None:
        return None
    value = said.value
    if isinstance(value, np.generic) or (isinstance(value, torch.Tensor) and value.numel() == 1):
        value = value.item()
    if not isinstance(value, _PLAIN):
        raise InputError(
            f"the script calls set_epoch of {type(told).__name__} with {value!r:.80}: give it a number or a text, so "
            "that those who make its samples can be told"
        )
    return [value]


@contextlib.contextmanager
def of_ours() -> Iterator[None]:
    """Calls inside are not the script's."""
    before, _own.calls = getattr(_own, "calls", False), True
    try:
        yield
    finally:
        _own.calls = before


def _reference(told: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(told)
    except TypeError:  # its class has slots
        return lambda: told


def _listening(method: types.FunctionType) -> Any:
    @functools.wraps(method)
    def set_epoch(self: Any, *args: Any, **named: Any) -> Any:
        within = _own.__dict__.setdefault("within", set())
        if getattr(_own, "calls", False) or id(self) in within or len(args) + len(named) != 1:
            return method(self, *args, **named)  # super(), for one, is called with what its object makes of the word
        before = said_to(self) or Said(0, None)
        _said[id(self)] = _reference(self), Said(before.times + 1, next(iter((*args, *named.values()))))
        within.add(id(self))
        try:
            return method(self, *args, **named)
        finally:
            within.discard(id(self))

    set_epoch.headrace_listens = True  # type: ignore[attr-defined]
    return set_epoch
