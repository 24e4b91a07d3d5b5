"""A batch as bytes: what it is made of, as JSON, then the memory of each tensor, as it is. Nothing is unpickled.

What travels: tensors and arrays of any dtype, numbers, texts, bytes and None, in lists, tuples, named tuples, dicts and
dataclasses, however nested. Named tuples and dataclasses are found by name among what the receiver has imported itself.

What is announced is not believed: sizes are checked before memory is taken for them.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import json
import math
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from headrace.errors import InputError

MOST_HEADER_BYTES = 16 << 20
MOST_BATCH_BYTES = 8 << 30
DEEPEST = 32
MOST_DIMENSIONS = 64
_PLAIN = (bool, int, float, str, type(None))
_DTYPES = {
    name: each
    for name, each in vars(torch).items()
    if isinstance(each, torch.dtype) and re.fullmatch(r"(u?int|b?float)(8|16|32|64)(_\w+)?|complex\d+|bool", name)
}
"""Those whose memory is all there is to them: not the quantized ones, nor those of less than a byte."""
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
    if len(header) > MOST_HEADER_BYTES or sum(each.nbytes for each in buffers) > MOST_BATCH_BYTES:
        raise InputError("a batch of more than 8 GiB, or of too many parts, cannot travel: make batches smaller")
    return header, buffers


def _describe(value: Any, buffers: Buffers, depth: int) -> Any:
    def children(values: collections.abc.Iterable[Any]) -> list[Any]:
        return [_describe(each, buffers, depth + 1) for each in values]

    if depth > DEEPEST:
        raise InputError(f"a batch nested deeper than {DEEPEST} levels cannot travel")
    if type(value) in _PLAIN:
        return {"v": value}
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        buffers.append(_memory(value))
        return {"tensor": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
    if (type(value) is np.ndarray or isinstance(value, np.generic)) and not value.dtype.hasobject:
        array = np.ascontiguousarray(value)
        buffers.append(_bytes_of(array))
        described = value.dtype.descr if value.dtype.names else value.dtype.str
        return {"array": described, "shape": list(value.shape), "scalar": isinstance(value, np.generic)}
    if type(value) is bytes:
        buffers.append(memoryview(value))
        return {"bytes": len(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {"named": _name(type(value)), "of": children(value)}
    if type(value) in (list, tuple):
        return {type(value).__name__: children(value)}
    if type(value) is dict and all(type(key) in _PLAIN for key in value):
        return {"dict": list(value), "of": children(value.values())}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [each.name for each in dataclasses.fields(value)]
        return {"data": _name(type(value)), "fields": names, "of": children(getattr(value, name) for name in names)}
    raise InputError(
        f"a batch with a {type(value).__module__}.{type(value).__qualname__} cannot travel: "
        "have collate_fn return plain tensors, arrays, numbers and texts, in lists, tuples, dicts or dataclasses"
    )


def _bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]


def _memory(tensor: torch.Tensor) -> memoryview:
    name = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout != torch.strided or tensor.is_nested or name not in _DTYPES:
        raise InputError(f"a batch with a {tensor.layout} tensor of {name} cannot travel: make it dense in collate_fn")
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return memoryview((flat.view(torch.uint8) if flat.numel() else torch.empty(0, dtype=torch.uint8)).numpy())


def _name(of: type) -> str:
    return f"{of.__module__}:{of.__qualname__}"


class Arriving:
    """A batch whose header has come: memory for its buffers, then the batch itself.

    Raises:
        Malformed: the header cannot be of a batch of `payload_bytes`.
    """

    def __init__(self, header: bytes, payload_bytes: int, pin_memory: bool = False) -> None:
        self._left, self._pin = payload_bytes, pin_memory
        self.buffers: Buffers = []
        try:
            record = json.loads(header)
            self.skipped = [(index, str(error)) for index, error in record["skipped"]]
            self._build = self._take(record["batch"], 0)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
            raise Malformed(f"a header that cannot be read ({error!r:.200})") from error
        if self._left:
            raise Malformed(f"{self._left} bytes that the header does not mention")

    def batch(self) -> Any:
        """To be called once the buffers are filled."""
        try:
            return self._build()
        except (TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise Malformed(f"what does not fit its type ({error!r:.200})") from error

    def _take(self, node: Any, depth: int) -> Callable[[], Any]:
        if depth > DEEPEST or not isinstance(node, dict):
            raise Malformed("no description of a batch")
        if "v" in node:
            value = node["v"]
            if type(value) not in _PLAIN:
                raise Malformed("no plain value")
            return lambda: value
        if "tensor" in node:
            dtype = _DTYPES[node["tensor"]]
            shape = self._shape(node["shape"], dtype.itemsize)
            tensor = torch.empty(shape, dtype=dtype, pin_memory=self._pin)
            self.buffers.append(_memory(tensor))
            return lambda: tensor
        if "array" in node:
            described = node["array"]
            kind = np.dtype([tuple(each) for each in described] if isinstance(described, list) else described)
            if kind.hasobject:
                raise Malformed("an array of objects")
            array = np.empty(self._shape(node["shape"], kind.itemsize), kind)
            self.buffers.append(_bytes_of(array))
            return lambda: array[()] if node.get("scalar") else array
        if "bytes" in node:
            text = np.empty(self._shape([node["bytes"]], 1), np.uint8)
            self.buffers.append(_bytes_of(text))
            return lambda: text.tobytes()
        for kind_of in (list, tuple):
            if kind_of.__name__ in node:
                parts = self._parts(node[kind_of.__name__], depth)
                return lambda: kind_of(part() for part in parts)
        parts = self._parts(node["of"], depth)
        if "dict" in node:
            keys = node["dict"]
            return lambda: dict(zip(keys, (part() for part in parts), strict=True))
        return self._user_type(node, parts)

    def _parts(self, nodes: Any, depth: int) -> list[Callable[[], Any]]:
        if not isinstance(nodes, list):
            raise Malformed("no list of parts")
        return [self._take(each, depth + 1) for each in nodes]

    def _user_type(self, node: dict[str, Any], parts: list[Callable[[], Any]]) -> Callable[[], Any]:
        named = "named" in node
        found = _find(node["named" if named else "data"])
        if named:
            if not (isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_fields")):
                raise Malformed(f"{node['named']} is no named tuple here")
            return lambda: found(*(part() for part in parts))
        names = node["fields"]
        if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
            raise Malformed(f"{node['data']} is no dataclass here")
        if names != [each.name for each in dataclasses.fields(found)]:
            raise Malformed(f"{node['data']} has other fields here")

        def build() -> Any:
            made = object.__new__(found)
            for name, part in zip(names, parts, strict=True):
                object.__setattr__(made, name, part())
            return made

        return build

    def _shape(self, shape: Any, item_bytes: int) -> tuple[int, ...]:
        sizes = tuple(shape)
        if len(sizes) > MOST_DIMENSIONS or any(type(size) is not int or size < 0 for size in sizes):
            raise Malformed("no shape")
        size = math.prod(sizes) * item_bytes
        if size > self._left:
            raise Malformed("more than was announced")
        self._left -= size
        return sizes


def _find(name: str) -> Any:
    """A class among what is imported here; nothing is imported for a message."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, "__dict__", {}).get(part)  # not getattr, which may import
    return found
