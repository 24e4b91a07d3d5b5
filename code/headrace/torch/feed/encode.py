"""A batch as bytes: what it is made of, as JSON, then the memory of each tensor, as it is. Nothing is unpickled.

What travels: tensors and arrays of any dtype, numbers, texts, bytes, paths, moments and None, in lists, tuples, sets,
named tuples, dicts, mappings, dataclasses and plain objects, however nested; tensors of subclasses with their
attributes, members of enumerations. Classes are found by name among what the receiver has imported itself.

What is announced is not believed: sizes are checked before memory is taken for them.
"""

from __future__ import annotations

import collections
import collections.abc
import dataclasses
import datetime
import decimal
import enum
import json
import pathlib
import re
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from headrace.errors import InputError
from headrace.torch.plain_objects import is_plain, is_plain_tensor, own_attributes

MOST_HEADER_BYTES = 16 << 20
MOST_BATCH_BYTES = 8 << 30
DEEPEST = 32
MOST_DIMENSIONS = 64
PLAIN = (bool, int, float, str, type(None))
DTYPES = {
    name: each
    for name, each in vars(torch).items()
    if isinstance(each, torch.dtype) and re.fullmatch(r"(u?int|b?float)(8|16|32|64)(_\w+)?|complex\d+|bool", name)
}
"""Those whose memory is all there is to them: not the quantized ones, nor those of less than a byte."""


def _written(moment: datetime.datetime) -> str:
    if moment.fold or not isinstance(moment.tzinfo, (datetime.timezone, type(None))):
        raise InputError(
            "a batch with a moment of a named time zone cannot travel: have collate_fn return its isoformat()"
        )
    return moment.isoformat()


WRITTEN: dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    "path": (pathlib.PosixPath, str, pathlib.PosixPath),
    "datetime": (datetime.datetime, _written, datetime.datetime.fromisoformat),
    "date": (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    "decimal": (decimal.Decimal, str, decimal.Decimal),
    "uuid": (uuid.UUID, str, uuid.UUID),
}
"""Types that a text tells all of: how it is written and read."""
SEQUENCES = (list, tuple, set, frozenset, torch.Size)
MAPPINGS = (dict, collections.UserDict)
"""With what is made of them: OrderedDict, the BatchEncoding of Hugging Face."""
DEFAULTS = {each.__name__: each for each in (list, dict, set, int, float, str, bool, tuple)}
"""What a defaultdict may make of what it lacks."""
Buffers = list[memoryview]


class Malformed(InputError):
    """A message that cannot be a batch."""


def encode(batch: Any, skipped: Sequence[tuple[Any, str]] = ()) -> tuple[bytes, Buffers]:
    """Header and buffers. Raises `InputError` for what cannot travel.

    Args:
        skipped: what the batch lacks; travels in the header.
    """
    buffers: Buffers = []
    record = {"batch": _describe(batch, buffers, 0), "skipped": list(skipped)}
    header = json.dumps(record, separators=(",", ":")).encode()
    if len(header) > MOST_HEADER_BYTES:
        raise InputError(
            "a batch with more than 16 MiB of texts and single numbers cannot travel: have collate_fn make arrays or "
            "tensors of the numbers, and bytes of a long text; or make batches smaller"
        )
    if sum(each.nbytes for each in buffers) > MOST_BATCH_BYTES:
        raise InputError("a batch of more than 8 GiB cannot travel: make batches smaller")
    return header, buffers


def _describe(value: Any, buffers: Buffers, depth: int) -> Any:
    def children(values: collections.abc.Iterable[Any]) -> list[Any]:
        return [_describe(each, buffers, depth + 1) for each in values]

    if depth > DEEPEST:
        raise InputError(f"a batch nested deeper than {DEEPEST} levels cannot travel")
    if type(value) in PLAIN:
        return {"v": value}
    for name, (kind, written, _) in WRITTEN.items():
        if type(value) is kind:
            return {"written": name, "text": written(value)}
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        tensor, own = _describe_tensor(value, buffers), vars(value)
        return {**tensor, "names": list(own), "values": children(own.values())} if own else tensor
    if is_plain_tensor(type(value)):
        inner, attributes = _describe_tensor(value.as_subclass(torch.Tensor), buffers), vars(value)
        of = [inner, *children(attributes.values())]
        return {"subclass": _name(type(value)), "fields": list(attributes), "of": of}
    if (type(value) in (np.ndarray, np.memmap) or isinstance(value, np.generic)) and not value.dtype.hasobject:
        array = np.ascontiguousarray(value)
        buffers.append(bytes_of(array))
        described = _fields(array.dtype) if array.dtype.names else array.dtype.str  # an empty text's is of one letter
        return {"array": described, "shape": list(value.shape), "scalar": isinstance(value, np.generic)}
    if type(value) is bytes:
        buffers.append(memoryview(value))
        return {"bytes": len(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {"named": _name(type(value)), "of": children(value)}
    if type(value) in SEQUENCES:
        return {type(value).__name__: children(value)}
    if type(value) is complex:
        return {"complex": [value.real, value.imag]}
    if type(value) is dict and all(type(key) in PLAIN for key in value):
        return {"dict": list(value), "of": children(value.values())}
    if isinstance(value, MAPPINGS):
        described = {"mapping": _name(dict), "keys": children(value), "of": children(value.values())}
        if type(value) is collections.defaultdict:  # its factory is code, but for those that all know
            return described | {"default": getattr(value.default_factory, "__name__", "")}
        beside = own_attributes(value)
        named = {"names": list(beside), "values": children(beside.values())} if beside else {}
        return described | {"mapping": _name(type(value)), **named}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = list(
            dict.fromkeys([*(each.name for each in dataclasses.fields(value)), *getattr(value, "__dict__", ())])
        )
        names = [name for name in names if hasattr(value, name)]
        return {"data": _name(type(value)), "fields": names, "of": children(getattr(value, name) for name in names)}
    if isinstance(value, enum.Enum) and type(value).__members__.get(value.name) is value:
        return {"enum": _name(type(value)), "member": value.name}
    if is_plain(type(value)):
        return {"object": _name(type(value)), "fields": list(vars(value)), "of": children(vars(value).values())}
    if isinstance(value, np.ndarray):
        raise InputError("a batch with an array of Python objects cannot travel: have collate_fn return its tolist()")
    raise InputError(
        f"a batch with a {type(value).__module__}.{type(value).__qualname__} cannot travel: "
        "have collate_fn return tensors, arrays, numbers and texts, in lists, tuples, dicts or objects of plain classes"
    )


def _fields(dtype: np.dtype[Any]) -> Any:
    try:
        return dtype.descr
    except ValueError as error:
        raise InputError(f"an array of {dtype} cannot travel: {error}; copy it in collate_fn") from error


def _describe_tensor(tensor: torch.Tensor, buffers: Buffers) -> dict[str, Any]:
    """In the order in which its memory lies: a tensor in channels_last stays one."""
    lies = tensor
    if not _is_dense(tensor):
        memory_of(tensor)  # says why not
    described: dict[str, Any] = {"tensor": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
    if not tensor.is_contiguous():
        order = sorted(range(tensor.dim()), key=lambda axis: -tensor.stride(axis))
        if tensor.permute(order).is_contiguous():
            lies, described["order"] = tensor.permute(order), order
    buffers.append(memory_of(lies))
    if tensor.requires_grad:
        described["grad"] = True
    return described


def bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_nested


def memory_of(tensor: torch.Tensor) -> memoryview:
    name = str(tensor.dtype).removeprefix("torch.")
    if not _is_dense(tensor) or name not in DTYPES:
        kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise InputError(f"a batch with a {kind} tensor of {name} cannot travel: make it dense in collate_fn")
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    flat = flat.as_strided(flat.shape, (1,))  # of a single element any stride is contiguous
    return memoryview((flat.view(torch.uint8) if flat.numel() else torch.empty(0, dtype=torch.uint8)).numpy())


def _name(of: type) -> str:
    if "<locals>" in of.__qualname__:
        raise InputError(
            f"a batch with a {of.__qualname__} cannot travel: define {of.__name__} at the top level of the script or "
            "of a module, where ranks find it"
        )
    return f"{of.__module__}:{of.__qualname__}"
