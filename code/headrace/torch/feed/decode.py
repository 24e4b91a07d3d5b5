"""A batch that comes: memory for what its header announces, then the batch itself. See `message` for what travels.

What is announced is not believed: sizes are checked before memory is taken for them.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import json
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from headrace.torch.feed.encode import (
    DEEPEST,
    DEFAULTS,
    DTYPES,
    MAPPINGS,
    MOST_DIMENSIONS,
    PLAIN,
    SEQUENCES,
    WRITTEN,
    Buffers,
    Malformed,
    bytes_of,
    memory_of,
)
from headrace.torch.plain_objects import is_plain, is_plain_tensor


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
        except (
            ValueError,
            TypeError,
            LookupError,
            AttributeError,
            RecursionError,
            OverflowError,
            SyntaxError,
        ) as error:
            raise Malformed(f"a header that cannot be read ({error!r:.200})") from error
        if self._left:
            raise Malformed(f"{self._left} bytes that the header does not mention")

    def batch(self) -> Any:
        """To be called once the buffers are filled."""
        try:
            return self._build()
        except (TypeError, ValueError, LookupError, AttributeError, RuntimeError, ArithmeticError) as error:
            raise Malformed(f"what does not fit its type ({error!r:.200})") from error

    def _take(self, node: Any, depth: int) -> Callable[[], Any]:
        if depth > DEEPEST or not isinstance(node, dict):
            raise Malformed("no description of a batch")
        if "v" in node:
            value = node["v"]
            if type(value) not in PLAIN:
                raise Malformed("no plain value")
            return lambda: value
        if "tensor" in node:
            return self._tensor(node, depth)
        if "array" in node:
            described = node["array"]
            kind = np.lib.format.descr_to_dtype(_fields(described))  # knows which of them are gaps
            if kind.hasobject:
                raise Malformed("an array of objects")
            array = np.empty(self._shape(node["shape"], kind.itemsize), kind)
            self.buffers.append(bytes_of(array))
            return lambda: array[()] if node.get("scalar") else array
        if "bytes" in node:
            text = np.empty(self._shape([node["bytes"]], 1), np.uint8)
            self.buffers.append(bytes_of(text))
            return lambda: text.tobytes()
        if "written" in node:
            _, _, read = WRITTEN[node["written"]]
            said = str(node["text"])
            return lambda: read(said)
        if "complex" in node:
            real, imaginary = (float(each) for each in node["complex"])
            return lambda: complex(real, imaginary)
        if "enum" in node:
            found = _find(node["enum"])
            if not (isinstance(found, type) and issubclass(found, enum.Enum)):
                raise Malformed(f"{node['enum']} is no enumeration here")
            member = found.__members__[node["member"]]
            return lambda: member
        for kind_of in SEQUENCES:
            if kind_of.__name__ in node:
                parts = self._parts(node[kind_of.__name__], depth)
                return lambda: kind_of(part() for part in parts)
        parts = self._parts(node["of"], depth)
        if "dict" in node:
            keys = node["dict"]
            return lambda: dict(zip(keys, (part() for part in parts), strict=True))
        if "mapping" in node:
            return self._mapping(node, self._parts(node["keys"], depth), parts, depth)
        if "subclass" in node or "object" in node:
            return _with_attributes(node, parts)
        return self._user_type(node, parts)

    def _tensor(self, node: dict[str, Any], depth: int) -> Callable[[], Any]:
        dtype = DTYPES[node["tensor"]]
        shape = self._shape(node["shape"], dtype.itemsize)
        order = node.get("order") or list(range(len(shape)))
        if sorted(order) != list(range(len(shape))) or any(type(axis) is not int for axis in order):
            raise Malformed("no order of dimensions")
        tensor = torch.empty([shape[axis] for axis in order], dtype=dtype, pin_memory=self._pin)
        self.buffers.append(memory_of(tensor))
        if node.get("order"):
            tensor = tensor.permute([order.index(axis) for axis in range(len(shape))])
        needs_grad = node.get("grad") is True and (dtype.is_floating_point or dtype.is_complex)
        own = self._own_attributes(node, depth)
        return lambda: own(tensor.requires_grad_() if needs_grad else tensor)

    def _own_attributes(self, node: dict[str, Any], depth: int) -> Callable[[Any], Any]:
        """What gives a tensor or a mapping the attributes that came with it."""
        if "names" not in node:
            return lambda made: made
        names, parts = _attribute_names(node["names"]), self._parts(node["values"], depth)

        def with_them(made: Any) -> Any:
            vars(made).update(zip(names, (part() for part in parts), strict=True))
            return made

        return with_them

    def _mapping(
        self, node: dict[str, Any], keys: list[Callable[[], Any]], values: list[Callable[[], Any]], depth: int
    ) -> Callable[[], Any]:
        found = _find(node["mapping"])
        if not (isinstance(found, type) and issubclass(found, MAPPINGS)):
            raise Malformed(f"{node['mapping']} is no mapping here")
        own = self._own_attributes(node, depth)
        if node.get("default") in DEFAULTS:
            found = functools.partial(collections.defaultdict, DEFAULTS[node["default"]])
        return lambda: own(found({key(): value() for key, value in zip(keys, values, strict=True)}))

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
            # Not by a `__new__` of its own, which may do something to what it is given; it counts the parts.
            return lambda: found._make(part() for part in parts)  # type: ignore[attr-defined]
        names = node["fields"]
        if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
            raise Malformed(f"{node['data']} is no dataclass here")
        if not all(type(name) is str and not name.startswith("__") for name in names):
            raise Malformed("no names of fields")
        if not {each.name for each in dataclasses.fields(found)} <= set(names):
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


def _with_attributes(node: dict[str, Any], parts: list[Callable[[], Any]]) -> Callable[[], Any]:
    """A plain object, or a tensor of a subclass, whose memory comes first. None of its code is called."""
    of_tensor, names = "subclass" in node, node["fields"]
    found = _find(node["subclass" if of_tensor else "object"])
    if not (isinstance(found, type) and (is_plain_tensor(found) if of_tensor else is_plain(found))):
        raise Malformed(f"{node['subclass' if of_tensor else 'object']} is no such class here")
    _attribute_names(names)

    def build() -> Any:
        values = [part() for part in parts]
        if of_tensor:
            with torch._C.DisableTorchFunctionSubclass():  # its own functions want its attributes
                plain = values.pop(0)
                made = plain.detach().as_subclass(found)
                made.requires_grad_(plain.requires_grad)
        else:
            made = object.__new__(found)
        vars(made).update(zip(names, values, strict=True))
        return made

    return build


def _attribute_names(names: Any) -> list[str]:
    if not isinstance(names, list) or not all(type(name) is str and not name.startswith("__") for name in names):
        raise Malformed("no names of attributes")
    return names


def _fields(described: Any) -> Any:
    """A structured array's fields, as NumPy has them, of what JSON makes of them; they may have fields themselves."""
    if not isinstance(described, list):
        return described
    return [(name, _fields(kind), *map(tuple, shape)) for name, kind, *shape in described]


def _find(name: str) -> Any:
    """A class among what is imported here; nothing is imported for a message."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, "__dict__", {}).get(part)  # not getattr, which may import
    return found
