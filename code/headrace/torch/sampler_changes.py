"""Whether a script changes a sampler whose samples are drawn ahead of training, as a curriculum does."""

from __future__ import annotations

import types
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from headrace.torch import world
from headrace.torch.dataset_code import is_the_scripts
from headrace.torch.dataset_writes import names_used

_PLAIN = (bool, int, float, str, type(None))
_MOST_LOOKED_AT = 1 << 10
"""Numbers of an array."""


class SamplerChanges:
    """What the script does to samplers between their draws; the first change is warned of."""

    def __init__(self, samplers: Sequence[Any]) -> None:
        self._samplers = samplers
        self._then: dict[str, Any] = {}
        self._told = False

    def drawn(self) -> None:
        """They have drawn, and may have changed meanwhile themselves."""
        if not self._told:
            self._then = self._now()

    def look(self) -> None:
        """They are about to draw again."""
        if self._told or not self._then:
            return
        changed = [name for name, each in self._now().items() if each != self._then.get(name)]
        if changed:
            self._told = True
            if world.rank() == 0:
                print(
                    f"warning: the script has changed {', '.join(sorted(changed)[:5])}, and samples are drawn ahead of "
                    "training: those of the next steps are as before. A sampler whose pass ends is asked anew in each",
                    flush=True,
                )

    def _now(self) -> dict[str, Any]:
        found = {}
        for each in self._samplers:
            kinds = [kind for kind in type(each).__mro__ if is_the_scripts(kind)]
            functions = [value for kind in kinds for name, value in vars(kind).items() if name != "__init__"]
            used = {
                name for each in functions if isinstance(each, types.FunctionType) for name in names_used(each.__code__)
            }
            for name, value in getattr(each, "__dict__", {}).items():
                if name in used:
                    found[f"{type(each).__name__}.{name}"] = _brief(value)
        return found


def _brief(value: Any) -> Any:
    """Equal as long as a value stays as it is."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, torch.Tensor):
        return id(value), 0 if value.is_inference() else value._version
    if isinstance(value, np.ndarray):
        return id(value), zlib.crc32(value.reshape(-1)[:_MOST_LOOKED_AT].tobytes())
    return id(value), len(value) if isinstance(value, (list, dict, set)) else 0
