"""Whether two processes have made the same dataset: what it is made of, in a few characters.

Numbers, arrays, tables of pandas, lists and dicts of numbers and texts, and datasets within, as `Subset` and
`ConcatDataset` have them. Of long ones some thousand places are looked at. What is in other objects is not seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

PLACES = 4096
DEEPEST = 6
_NUMBERS = (bool, int, float, complex, type(None))


def fingerprint(dataset: Any) -> str:
    """Differs where the datasets differ, as far as their attributes tell."""
    digest = hashlib.sha256()
    _add(digest, dataset, 0)
    return digest.hexdigest()[:16]


def _add(digest: Any, value: Any, depth: int) -> None:
    digest.update(type(value).__qualname__.encode())
    if depth > DEEPEST:
        return
    if isinstance(value, _NUMBERS):
        digest.update(repr(value).encode())
    elif type(value) in (torch.Tensor, torch.nn.Parameter):
        digest.update(repr((value.dtype, value.shape)).encode())
        if value.layout == torch.strided and value.device.type == "cpu" and value.is_contiguous():
            flat = value.detach().view(-1)
            digest.update(flat[:: max(len(flat) // PLACES, 1)].clone().view(torch.uint8).numpy().tobytes())
    elif isinstance(value, np.ndarray):
        digest.update(repr((value.dtype, value.shape)).encode())
        if not value.dtype.hasobject:
            digest.update(value.flat[:: max(value.size // PLACES, 1)].tobytes())
    elif isinstance(value, (list, tuple, range)):
        _add_places(digest, value, depth)
    elif isinstance(value, dict):
        for key in sorted(value, key=repr)[:PLACES]:
            digest.update(repr(key).encode())
            _add(digest, value[key], depth + 1)
    elif type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "to_numpy"):
        places = value[:: max(len(value) // PLACES, 1)]
        digest.update(repr((len(value), places.to_numpy().tolist())).encode(errors="surrogateescape"))
    elif hasattr(value, "__dict__") and (depth == 0 or isinstance(value, Dataset) or _is_like_a_dataset(value)):
        for name, attribute in sorted(vars(value).items()):
            if not isinstance(attribute, str):  # a folder may have another name elsewhere
                digest.update(name.encode())
                _add(digest, attribute, depth + 1)


def _is_like_a_dataset(value: Any) -> bool:
    return callable(getattr(value, "__getitem__", None)) and callable(getattr(value, "__len__", None))


def _add_places(digest: Any, values: Sequence[Any], depth: int) -> None:
    digest.update(str(len(values)).encode())
    for value in values[:: max(len(values) // PLACES, 1)]:
        if isinstance(value, str):
            digest.update(value.encode(errors="surrogateescape") + b"\0")
        else:
            _add(digest, value, depth + 1)
