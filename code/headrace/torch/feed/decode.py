"""Decode a batch from its header and the bytes that follow. `encode` lists the types that can be sent.

The sender is not trusted. Sizes are checked before memory is allocated. Classes come only from modules that are already
imported here. Objects are made without running code of their class, except named tuples and mappings.
"""

from __future__ import annotations

import copyreg
import dataclasses
import datetime
import decimal
import enum
import json
import math
import pathlib
import re
import sys
import uuid
from collections import UserDict, defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from headrace.errors import InputError

MOST_LEVELS = 32
MOST_DIMENSIONS = 64
PLAIN = (bool, int, float, str, type(None))
DTYPES = {
    name: each
    for name, each in vars(torch).items()
    if isinstance(each, torch.dtype) and re.fullmatch(r"(u?int|b?float)(8|16|32|64)(_\w+)?|complex\d+|bool", name)
}
"""Dtypes that can be restored from raw memory. Quantized dtypes, and those smaller than a byte, are not among them."""
WRITTEN: dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    "path": (pathlib.PosixPath, str, pathlib.PosixPath),
    "datetime": (datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    "date": (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    "decimal": (decimal.Decimal, str, decimal.Decimal),
    "uuid": (uuid.UUID, str, uuid.UUID),
    "complex": (complex, str, complex),
}
"""Types that are sent as text: for each name, the type and the functions that write and read it."""
SEQUENCES = (list, tuple, set, frozenset, torch.Size)
MAPPINGS = (dict, UserDict)
"""Base classes of mappings that can be sent, such as OrderedDict and Hugging Face's BatchEncoding."""
DEFAULTS = {each.__name__: each for each in (list, dict, set, int, float, str, bool, tuple)}
"""Default factories that can be sent, by name. A defaultdict with another factory is sent as a dict."""
_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, RuntimeError, ArithmeticError, SyntaxError)
Buffers = list[memoryview]
Build = Callable[[], Any]
"""Function that makes a part of the batch once the buffers are filled."""


class Decoder:
    """Decodes a batch. Fill `buffers`, then call `batch`. `state` is the dataset's state after the batch.

    Args:
        payload_bytes: size of the payload, which follows the header. It is to be received into `buffers`.
        pin_memory: whether to allocate the batch's tensors in pinned memory.

    Raises:
        InputError: the header cannot be read, or does not fit the payload's size.
    """

    def __init__(self, header: bytes, payload_bytes: int, pin_memory: bool = False) -> None:
        self._left, self._pin = payload_bytes, pin_memory
        self.buffers: Buffers = []
        try:
            record = json.loads(header)
            self.skipped = [(index, str(error)) for index, error in record["skipped"]]
            self._build = self._read(record["batch"])
            self.state = record.get("state")
        except _UNREADABLE as error:
            raise InputError(f"a batch's header cannot be read ({error!r:.300})") from error
        if self._left:
            raise InputError(f"a batch has {self._left:,} bytes that its header does not mention")

    def batch(self) -> Any:
        """Make the batch from the filled buffers. Raises `InputError`."""
        try:
            return self._build()
        except _UNREADABLE as error:
            raise InputError(f"a part of a batch does not fit its type ({error!r:.300})") from error

    def _read(self, node: Any, level: int = 0) -> Build:
        """Check a part's description, allocate its memory, and return the function that makes the part."""

        def parts_of(nodes: list[Any]) -> list[Build]:
            return [self._read(each, level + 1) for each in nodes]

        _require(level <= MOST_LEVELS, "too many levels")
        if "v" in node:
            value = node["v"]
            _require(type(value) in PLAIN, "no plain value")
            return lambda: value
        if "tensor" in node:
            return _filled(self._tensor(node), node.get("names", []), parts_of(node.get("values", [])))
        if "array" in node:
            dtype = np.lib.format.descr_to_dtype(_fields(node["array"]))  # knows which fields are padding
            _require(not dtype.hasobject, "an array of objects")
            array = np.empty(self._size(node["shape"], dtype.itemsize), dtype)
            self.buffers.append(bytes_of(array))
            return lambda: array[()] if node.get("scalar") else array
        if "bytes" in node:
            text = np.empty(self._size([node["bytes"]], 1), np.uint8)
            self.buffers.append(bytes_of(text))
            return text.tobytes
        if "written" in node:
            return partial(WRITTEN[node["written"]][2], str(node["text"]))
        if "enum" in node:
            members = _class(node["enum"], lambda kind: issubclass(kind, enum.Enum)).__members__
            member = members[node["member"]]
            return lambda: member
        for kind in SEQUENCES:
            if kind.__name__ in node:
                elements = parts_of(node[kind.__name__])
                return lambda: kind(_all(elements))
        keys, parts = parts_of(node.get("keys", [])), parts_of(node["of"])
        names, values = node.get("names", []), parts_of(node.get("values", []))
        if "dict" in node:
            return lambda: dict(zip(node["dict"], _all(parts), strict=True))
        if "mapping" in node:
            make = _class(node["mapping"], lambda kind: issubclass(kind, MAPPINGS))
            if node.get("default") in DEFAULTS:
                make = partial(defaultdict, DEFAULTS[node["default"]])
            return _filled(lambda: make(dict(zip(_all(keys), _all(parts), strict=True))), names, values)
        if "named" in node:  # by `_make`, which counts the parts; `__new__` may change its arguments
            make = _class(node["named"], lambda kind: issubclass(kind, tuple) and hasattr(kind, "_fields"))._make
            return lambda: make(_all(parts))
        if "subclass" in node:
            found = _class(node["subclass"], is_plain_tensor)
            return _filled(partial(_as_subclass, parts[0], found), node["fields"], parts[1:])
        if "object" in node:
            return _filled(partial(object.__new__, _class(node["object"], is_plain)), node["fields"], parts)
        found = _class(node["data"], dataclasses.is_dataclass)
        fields = {each.name for each in dataclasses.fields(found)}
        _require(fields <= {*node["fields"]}, f"{found} has other fields here")
        return _filled(partial(object.__new__, found), node["fields"], parts, object.__setattr__)

    def _tensor(self, node: dict[str, Any]) -> Build:
        dtype = DTYPES[node["tensor"]]
        shape = self._size(node["shape"], dtype.itemsize)
        order = node.get("order") or list(range(len(shape)))
        _require(sorted(order) == list(range(len(shape))) and all(type(axis) is int for axis in order), "no order")
        tensor = torch.empty([shape[axis] for axis in order], dtype=dtype, pin_memory=self._pin)
        self.buffers.append(memory_of(tensor))
        if node.get("order"):
            tensor = tensor.permute([order.index(axis) for axis in range(len(shape))])
        needs_grad = node.get("grad") is True and (dtype.is_floating_point or dtype.is_complex)
        return partial(tensor.requires_grad_, needs_grad)

    def _size(self, shape: Any, item_bytes: int) -> tuple[int, ...]:
        """Check a shape, and subtract its size from the payload bytes that are left."""
        sizes = tuple(shape)
        _require(len(sizes) <= MOST_DIMENSIONS and all(type(size) is int and size >= 0 for size in sizes), "no shape")
        self._left -= math.prod(sizes) * item_bytes
        _require(self._left >= 0, "more bytes than were announced")
        return sizes


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _class(name: str, fits: Callable[[type], bool]) -> Any:
    """Return a class from the modules that this process has imported. A message cannot import modules."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, "__dict__", {}).get(part)  # a module's own getattr may import
    if not (isinstance(found, type) and fits(found)):
        raise ValueError(f"class {name} is not imported or differs on this host: import it at the top of the script")
    return found


def _hold(made: Any, name: str, value: Any) -> None:
    vars(made)[name] = value


def _filled(make: Build, names: Any, values: list[Build], put: Callable[[Any, str, Any], None] = _hold) -> Build:
    """Return a function that makes an object and sets its attributes without running code of its class."""
    _require(all(type(name) is str and not name.startswith("__") for name in names), "no names of attributes")

    def build() -> Any:
        made = make()
        for name, value in zip(names, values, strict=True):
            put(made, name, value())
        return made

    return build


def _all(parts: list[Build]) -> list[Any]:
    return [part() for part in parts]


def _as_subclass(make: Build, kind: type) -> Any:
    with torch._C.DisableTorchFunctionSubclass():  # the class's own functions read its attributes
        tensor = make()
        return tensor.detach().as_subclass(kind).requires_grad_(tensor.requires_grad)


def _fields(described: Any) -> Any:
    """Return a dtype's description from JSON. Lists become tuples, which NumPy needs for a structured dtype."""
    if not isinstance(described, list):
        return described
    return [(name, _fields(kind), *map(tuple, shape)) for name, kind, *shape in described]


def bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    """Return a view of a contiguous array's memory."""
    return memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]


def memory_of(tensor: torch.Tensor) -> memoryview:
    """Return a view of the memory of a contiguous tensor on the CPU."""
    if not tensor.numel():
        return memoryview(bytearray())
    flat = tensor.reshape(-1).as_strided((tensor.numel(),), (1,))  # any stride of a single element is contiguous
    return memoryview(flat.view(torch.uint8).numpy())


def is_plain(kind: type) -> bool:
    """Return whether a class's objects hold only a `__dict__`, and are made and pickled by `object`'s methods."""
    pythons = ("__new__", "__reduce_ex__", "__reduce__", "__getstate__")
    own = ("__setstate__", "__getnewargs__", "__getnewargs_ex__", "__del__")
    return (
        all(getattr(kind, name, None) is getattr(object, name, None) for name in pythons)
        and not any(hasattr(kind, name) for name in own)
        and (kind.__dictoffset__, kind.__basicsize__) == (Decoder.__dictoffset__, Decoder.__basicsize__)  # has no slots
        and kind not in copyreg.dispatch_table
    )


def is_plain_tensor(kind: type) -> bool:
    """Return whether a class's tensors have memory of their own, and do not wrap other tensors."""
    return (
        issubclass(kind, torch.Tensor)
        and getattr(kind, "__torch_dispatch__", None) is torch.Tensor.__torch_dispatch__
        and not hasattr(kind, "__del__")
    )
