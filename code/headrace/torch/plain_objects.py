"""Which objects are what their attributes say: they can be taken apart and made anew without any code of theirs."""

from __future__ import annotations

import copyreg
from collections import UserDict
from typing import Any

import torch

from headrace.torch.dataset_code import is_the_scripts

_PYTHONS = ("__new__", "__reduce_ex__", "__reduce__", "__getstate__")
_OWN = ("__setstate__", "__getnewargs__", "__getnewargs_ex__", "__del__")


class _Plain:
    """To be compared with."""


def is_plain(of: type) -> bool:
    """Whether the class leaves to Python how its objects are made and pickled, and all that they have is attributes."""
    return (
        all(getattr(of, name, None) is getattr(object, name, None) for name in _PYTHONS)
        and not any(hasattr(of, name) for name in _OWN)
        and (of.__dictoffset__, of.__basicsize__) == (_Plain.__dictoffset__, _Plain.__basicsize__)
        and of not in copyreg.dispatch_table
    )


def own_attributes(mapping: Any) -> dict[str, Any]:
    """What a mapping of the script's own class holds beside its entries; not where they are its attributes too."""
    held = getattr(mapping, "__dict__", {})
    if held is mapping or not is_the_scripts(type(mapping)):
        return {}
    return {name: each for name, each in held.items() if not (name == "data" and isinstance(mapping, UserDict))}


def is_plain_tensor(of: type) -> bool:
    """Whether it is a class of tensors that have memory of their own: not one that wraps others."""
    return (
        issubclass(of, torch.Tensor)
        and getattr(of, "__torch_dispatch__", None) is torch.Tensor.__torch_dispatch__
        and not hasattr(of, "__del__")
    )
