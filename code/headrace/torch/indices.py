"""What a sampler yields and a dataset is asked for: a number, a text, or a tuple or a list of these."""

from __future__ import annotations

from typing import Any

import numpy as np

Index = int | str | float | tuple[Any, ...] | list[Any]
"""A list, of what reads several samples at once (`sampler=BatchSampler(…), batch_size=None`); a tuple, of a number and
a flag, say."""
_DEEPEST = 3
_TUPLE = "tuple"


def plain_index(index: Any, depth: int = 0) -> Index:
    """Without NumPy's and torch's numbers. Raises `TypeError` for anything else than an index."""
    if isinstance(index, np.generic):
        index = index.item()
    if isinstance(index, (str, bool)) or (isinstance(index, float) and depth):
        return index
    if type(index) in (tuple, list) and depth < _DEEPEST:
        parts = [plain_index(each, depth + 1) for each in index]
        return tuple(parts) if isinstance(index, tuple) else parts
    return int(index.__index__())


def index_as_json(index: Index) -> Any:
    """JSON knows no tuples."""
    if isinstance(index, (tuple, list)):
        parts = [index_as_json(each) for each in index]
        return {_TUPLE: parts} if isinstance(index, tuple) else parts
    return index


def index_of_json(told: Any, depth: int = 0) -> Index:
    """An index from a message. Raises `TypeError` for anything else."""
    if type(told) in (int, str, bool) or (type(told) is float and depth):
        return told  # type: ignore[no-any-return]
    parts = told.get(_TUPLE) if isinstance(told, dict) else told
    if not isinstance(parts, list) or depth >= _DEEPEST:
        raise TypeError("no index")
    found = [index_of_json(each, depth + 1) for each in parts]
    return tuple(found) if isinstance(told, dict) else found
