"""Encode a batch as bytes: a JSON header that describes it, then the raw memory of its tensors. No pickle.

These can be sent, nested in each other: tensors and arrays of any dtype, numbers, texts, bytes, paths, dates and None;
lists, tuples, sets, named tuples, dicts and other mappings; dataclasses, enumerations and objects of plain classes;
instances of Tensor's subclasses, with attributes. Only a class's name is sent, so the receiver must import the class.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from headrace.errors import InputError
from headrace.torch.feed import decode

MOST_HEADER_BYTES = 16 << 20
MOST_BATCH_BYTES = 8 << 30


def encode(batch: Any, skipped: Sequence[tuple[Any, str]] = (), state: Any = None) -> tuple[bytes, decode.Buffers]:
    """Return a batch's header and the buffers that follow it. Raises `InputError` if the batch cannot be sent.

    Args:
        skipped: index and error of each sample that was left out of the batch.
        state: the dataset's own `state_dict()` after this batch, in JSON types; None if the dataset has none.
    """
    buffers: decode.Buffers = []
    try:
        described = _describe(batch, buffers, 0)
    except _CannotBeSentError as error:
        raise InputError(f"a batch with {error}") from error
    record = {"batch": described, "skipped": list(skipped), "state": state}
    header = json.dumps(record, separators=(",", ":")).encode()
    if len(header) > MOST_HEADER_BYTES:
        raise InputError(
            "a batch with more than 16 MiB of texts and single numbers cannot be sent: have collate_fn return the "
            "numbers as arrays or tensors, and long texts as bytes; or make batches smaller"
        )
    if sum(each.nbytes for each in buffers) > MOST_BATCH_BYTES:
        raise InputError("a batch of more than 8 GiB cannot be sent: make batches smaller")
    return header, buffers


class _CannotBeSentError(InputError):
    """Raised for a part of a batch that cannot be sent, with advice."""


def _describe(value: Any, buffers: decode.Buffers, level: int) -> dict[str, Any]:
    """Return the header's entry for a value, and append the value's memory to `buffers`."""

    def each_of(values: Iterable[Any]) -> list[Any]:
        return [_describe(each, buffers, level + 1) for each in values]

    kind = type(value)
    if level > decode.MOST_LEVELS:
        raise _CannotBeSentError(f"parts nested deeper than {decode.MOST_LEVELS} levels cannot be sent: flatten them")
    if kind in decode.PLAIN:
        return {"v": value}
    if kind in (torch.Tensor, torch.nn.Parameter):
        described, own = _describe_tensor(value, buffers), vars(value)
        return {**described, "names": list(own), "values": each_of(own.values())} if own else described
    if decode.is_plain_tensor(kind):
        memory, own = _describe_tensor(value.as_subclass(torch.Tensor), buffers), vars(value)
        return {"subclass": _name(kind), "fields": list(own), "of": [memory, *each_of(own.values())]}
    if (kind in (np.ndarray, np.memmap) or isinstance(value, np.generic)) and not value.dtype.hasobject:
        array = np.ascontiguousarray(value)
        buffers.append(decode.bytes_of(array))
        return {"array": _fields(array.dtype), "shape": list(value.shape), "scalar": isinstance(value, np.generic)}
    if kind is bytes:
        buffers.append(memoryview(value))
        return {"bytes": len(value)}
    for name, (written, write, _) in decode.WRITTEN.items():
        if kind is written:
            if name == "datetime" and (value.fold or not isinstance(value.tzinfo, (datetime.timezone, type(None)))):
                raise _CannotBeSentError("a named time zone cannot be sent: have collate_fn return its isoformat()")
            return {"written": name, "text": write(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {"named": _name(kind), "of": each_of(value)}
    if kind in decode.SEQUENCES:
        return {kind.__name__: each_of(value)}
    if kind is dict and all(type(key) in decode.PLAIN for key in value):
        return {"dict": list(value), "of": each_of(value.values())}
    if isinstance(value, decode.MAPPINGS):
        described = {"mapping": _name(dict), "keys": each_of(value), "of": each_of(value.values())}
        if type(value) is collections.defaultdict:
            return described | {"default": getattr(value.default_factory, "__name__", "")}
        return described | {"mapping": _name(kind)} | _describe_attributes(value, buffers, level)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = dict.fromkeys([*(each.name for each in dataclasses.fields(value)), *getattr(value, "__dict__", ())])
        held = {name: getattr(value, name) for name in names if hasattr(value, name)}
        return {"data": _name(kind), "fields": list(held), "of": each_of(held.values())}
    if isinstance(value, enum.Enum) and kind.__members__.get(value.name) is value:
        return {"enum": _name(kind), "member": value.name}
    if decode.is_plain(kind):
        return {"object": _name(kind), "fields": list(vars(value)), "of": each_of(vars(value).values())}
    if isinstance(value, np.ndarray):
        raise _CannotBeSentError("an array of Python objects cannot be sent: have collate_fn return its tolist()")
    raise _CannotBeSentError(
        f"a {kind.__module__}.{kind.__qualname__} cannot be sent: "
        "have collate_fn return tensors, arrays, numbers and texts, in lists, tuples, dicts or objects of plain classes"
    )


def _describe_attributes(mapping: Any, buffers: decode.Buffers, level: int) -> dict[str, Any]:
    """Return the header's entries for a mapping's attributes.

    A private attribute that cannot be sent, such as a tokenizer object of Hugging Face's BatchEncoding, is left out.
    On the receiver, the attribute has the value that the class's constructor sets.
    """
    entries, names, values = dict(mapping.items()), [], []
    for name, held in getattr(mapping, "__dict__", {}).items():
        if entries.get(name, mapping) is held or (name == "data" and isinstance(mapping, collections.UserDict)):
            continue
        before = len(buffers)
        try:
            values.append(_describe(held, buffers, level + 1))
            names.append(name)
        except _CannotBeSentError:
            if not name.startswith("_"):
                raise
            del buffers[before:]
    return {"names": names, "values": values} if names else {}


def _fields(dtype: np.dtype[Any]) -> Any:
    try:
        return dtype.descr if dtype.names else dtype.str
    except ValueError as error:
        raise _CannotBeSentError(f"an array of {dtype} cannot be sent ({error}): have collate_fn copy it") from error


def _describe_tensor(tensor: torch.Tensor, buffers: decode.Buffers) -> dict[str, Any]:
    """Return the header's entry for a tensor. The order of its memory is kept: channels_last stays channels_last."""
    name = str(tensor.dtype).removeprefix("torch.")
    if tensor.is_nested or tensor.layout != torch.strided or name not in decode.DTYPES:
        kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise _CannotBeSentError(f"a {kind} tensor of {name} cannot be sent: have collate_fn make it dense")
    described: dict[str, Any] = {"tensor": name, "shape": list(tensor.shape)}
    if tensor.requires_grad:
        described["grad"] = True
    if not tensor.is_contiguous():
        order = sorted(range(tensor.dim()), key=lambda axis: -tensor.stride(axis))
        if tensor.permute(order).is_contiguous():
            tensor, described["order"] = tensor.permute(order), order
    buffers.append(decode.memory_of(tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()))
    return described


def _name(kind: type) -> str:
    if "<locals>" in kind.__qualname__:
        advice = f"define {kind.__name__} at the top level of the script or of a module, where ranks find it"
        raise _CannotBeSentError(f"a {kind.__qualname__} cannot be sent: {advice}")
    return f"{kind.__module__}:{kind.__qualname__}"
