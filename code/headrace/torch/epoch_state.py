"""What a dataset's `set_epoch` begins with: the same in each process, whichever epochs the process has made batches of.

A list that `set_epoch` shuffles in place would else be another one in each process that makes samples, and samples of
an epoch would come twice, or never.
"""

from __future__ import annotations

import collections
import copy
from typing import Any

import numpy as np
import torch

from headrace.errors import InputError
from headrace.torch.dataset_writes import counted_by_set_epoch, written_by_set_epoch

_CONTAINERS = (list, dict, set, collections.deque, np.ndarray, torch.Tensor)
_known: dict[int, dict[str, tuple[Any, Any]]] = {}
"""Of each dataset, by its id, what attributes were before its `set_epoch`, and after it: loaders keep theirs alive."""


def put_back(dataset: Any) -> None:
    """Before `set_epoch` is called: what its last call has changed, and the script has not, is as it was before it.

    Raises:
        InputError: samples are made of a number that it adds to.
    """
    kind: Any = type(dataset)
    held, known = getattr(dataset, "__dict__", {}), _known.setdefault(id(dataset), {})
    for name in sorted(counted_by_set_epoch(kind) & held.keys()):
        if type(held[name]) in (int, float):
            raise InputError(
                f"set_epoch of {kind.__qualname__} adds to {name}, of which samples are made: a process is told of the "
                f"epochs alone of which it makes samples. Compute it from the epoch: self.{name} = … epoch …"
            )
    for name in written_by_set_epoch(kind) & held.keys():
        before, after = known.get(name, (None, None))
        if before is not None and _same(held[name], after):
            setattr(dataset, name, _copied(before))
        elif isinstance(held[name], _CONTAINERS):
            known[name] = (_copied(held[name]), None)


def keep(dataset: Any) -> None:
    """After `set_epoch` was called."""
    known = _known.get(id(dataset), {})
    for name, (before, _) in known.items():
        known[name] = (before, _copied(getattr(dataset, name, None)))


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else copy.copy(value)


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    try:
        if isinstance(one, torch.Tensor):
            return torch.equal(one, other)
        return np.array_equal(one, other) if isinstance(one, np.ndarray) else bool(one == other)
    except Exception:  # whatever elements do when they are compared
        return False
