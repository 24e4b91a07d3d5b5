"""Whether a script changes a sampler whose samples are drawn ahead of training, as a curriculum does."""

from __future__ import annotations

import contextlib
import functools
import weakref
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from headrace.torch import distributed as world
from headrace.torch.dataset_code import own_names, reached

_PLAIN = (bool, int, float, str, type(None), np.generic)
_MOST_LOOKED_AT = 1 << 10
"""Numbers of an array."""
_last: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
"""What each sampler was when it had drawn; several passes may draw from one."""
_told: set[str] = set()


def have_drawn(samplers: Sequence[Any]) -> None:
    """They have drawn, and may have changed meanwhile themselves."""
    for each in samplers:
        with contextlib.suppress(Exception):  # whatever a script's object does when it is looked at
            _last[each] = _now(each)


def look(samplers: Sequence[Any]) -> None:
    """They are about to draw on. Rank 0 warns, once, of each attribute that the script has set since they drew last."""
    for each in samplers:
        with contextlib.suppress(Exception):
            then, now = _last[each], _now(each)
            # What was not there before may be a cached property.
            names = [name for name in then if now.get(name) != then[name]]
            changed = {f"{type(each).__name__}.{name}" for name in names} - _told
            _told.update(changed)
            if changed and world.rank() == 0:
                print(
                    f"warning: the script has changed {', '.join(sorted(changed)[:5])}, and samples are drawn ahead of "
                    "training: the next steps still use those drawn before. A sampler that ends is asked anew in each "
                    "epoch",
                    flush=True,
                )


def _now(sampler: Any) -> dict[str, Any]:
    kind: Any = type(sampler)
    names = _read_by(kind)
    return {name: _brief(value) for name, value in dict(vars(sampler)).items() if name in names}


@functools.cache
def _read_by(kind: type) -> frozenset[str]:
    """Attributes that its iteration reads."""
    methods = reached(kind, ("__iter__", "__next__"))
    return frozenset(name for method in methods for name in own_names(method, kind))


def _brief(value: Any) -> Any:
    """Equal as long as a value stays as it is, as far as that is cheap to see."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, torch.Tensor):
        return id(value), 0 if value.is_inference() else value._version
    if isinstance(value, np.ndarray):
        return id(value), zlib.crc32(value.reshape(-1)[:_MOST_LOOKED_AT].tobytes())
    if isinstance(value, tuple):
        return tuple(map(_brief, value[:_MOST_LOOKED_AT]))
    return id(value), len(value) if isinstance(value, (list, dict, set)) else 0
