"""Encode a batch as bytes, and decode it: a JSON header, then the raw memory of the batch's tensors. No pickle.

These can be sent, nested in each other: tensors and arrays of any dtype, numbers, texts, bytes, paths, dates and None;
lists, tuples, sets, named tuples, dicts and other mappings; dataclasses, enumerations and objects of plain classes;
instances of Tensor's subclasses, with attributes. A message has a class's name, but not its code.

The receiver does not trust the sender. Sizes are checked before memory is allocated. Classes come only from modules
that are already imported here. Objects are made without running code of their class, except named tuples and mappings.
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from headrace.errors import InputError

MOST_HEADER_BYTES = 16 << 20
MOST_BATCH_BYTES = 8 << 30
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
"""Factories that a batch's defaultdict may have, by name. With another `default_factory`, a plain dict arrives."""
_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, RuntimeError, ArithmeticError, SyntaxError)
Buffers = list[memoryview]


def encode(batch: Any, skipped: Sequence[tuple[Any, str]] = (), state: Any = None) -> tuple[bytes, Buffers]:
    """Return a batch's header and the buffers that follow it. Raises `InputError` if the batch cannot be sent.

    Args:
        skipped: index and error of each sample that was left out of the batch.
        state: the dataset's own `state_dict()` after this batch, in JSON types; None if the dataset has none.
    """
    encoder = _Encoder()
    described = encoder.describe(batch)
    record = {"batch": described, "memory": encoder.memory, "skipped": list(skipped), "state": state}
    header = json.dumps(record, separators=(",", ":")).encode()
    if len(header) > MOST_HEADER_BYTES:
        raise InputError(
            "a batch with more than 16 MiB of texts and single numbers cannot be sent: have collate_fn return the "
            "numbers as arrays or tensors, and long texts as bytes; or make batches smaller"
        )
    if sum(each.nbytes for each in encoder.buffers) > MOST_BATCH_BYTES:
        raise InputError("a batch of more than 8 GiB cannot be sent: make batches smaller")
    return header, encoder.buffers


class _Encoder:
    """Describes the parts of a batch, and collects their data in `buffers`. `memory` has an entry for each buffer."""

    def __init__(self) -> None:
        self.memory: list[dict[str, Any]] = []
        self.buffers: Buffers = []

    def describe(self, value: Any, level: int = 0) -> dict[str, Any]:
        """Return the header's entry for a value. The entry refers to a buffer by the buffer's index in `memory`."""

        def each_of(values: Iterable[Any]) -> list[Any]:
            return [self.describe(each, level + 1) for each in values]

        def attributes(held: Mapping[str, Any]) -> dict[str, Any]:
            return {"attributes": dict(zip(held, each_of(held.values()), strict=True))} if held else {}

        kind = type(value)
        if level > MOST_LEVELS:
            raise _cannot_be_sent(f"parts nested deeper than {MOST_LEVELS} levels", "flatten them")
        if kind in PLAIN:
            return {"v": value}
        if kind in (torch.Tensor, torch.nn.Parameter):
            return {"memory": self._add_tensor(value)} | attributes(vars(value))
        if is_plain_tensor(kind):
            place = self._add_tensor(value.as_subclass(torch.Tensor))
            return {"memory": place, "subclass": _name(kind)} | attributes(vars(value))
        if (kind in (np.ndarray, np.memmap) or isinstance(value, np.generic)) and not value.dtype.hasobject:
            return {"scalar" if isinstance(value, np.generic) else "memory": self._add_array(value)}
        if kind is bytes:
            return {"bytes": self._add_array(np.frombuffer(value, np.uint8))}
        for name, (written, write, _) in WRITTEN.items():
            if kind is written:
                if name == "datetime" and (value.fold or not isinstance(value.tzinfo, (datetime.timezone, type(None)))):
                    raise _cannot_be_sent("a named time zone", "have collate_fn return the datetime's isoformat()")
                return {"written": name, "text": write(value)}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return {"named": _name(kind), "of": each_of(value)}
        if kind in SEQUENCES:
            return {kind.__name__: each_of(value)}
        if kind is dict and all(type(key) in PLAIN for key in value):
            return {"dict": list(value), "of": each_of(value.values())}
        if isinstance(value, MAPPINGS):
            described = {"mapping": _name(dict), "keys": each_of(value), "of": each_of(value.values())}
            if type(value) is defaultdict:
                return described | {"default": getattr(value.default_factory, "__name__", "")}
            return described | {"mapping": _name(kind), "attributes": self._attributes_of_mapping(value, level)}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = dict.fromkeys([*(each.name for each in dataclasses.fields(value)), *getattr(value, "__dict__", ())])
            held = {name: getattr(value, name) for name in names if hasattr(value, name)}
            return {"object": _name(kind)} | attributes(held)
        if isinstance(value, enum.Enum) and kind.__members__.get(value.name) is value:
            return {"enum": _name(kind), "member": value.name}
        if is_plain(kind):
            return {"object": _name(kind)} | attributes(vars(value))
        if isinstance(value, np.ndarray):
            raise _cannot_be_sent("an array of Python objects", "have collate_fn return the array's tolist()")
        advice = "have collate_fn return tensors, arrays, numbers and texts, in lists, tuples, dicts or plain objects"
        raise _cannot_be_sent(f"a {kind.__module__}.{kind.__qualname__}", advice)

    def _attributes_of_mapping(self, mapping: Any, level: int) -> dict[str, Any]:
        """Return the header's entries for a mapping's attributes.

        A private attribute that cannot be sent, such as a tokenizer object of Hugging Face's BatchEncoding, is left
        out. On the receiver, the attribute has the value that the class's constructor sets.
        """
        entries, attributes = dict(mapping.items()), {}
        for name, held in getattr(mapping, "__dict__", {}).items():
            if entries.get(name, mapping) is held or (name == "data" and isinstance(mapping, UserDict)):
                continue
            before = len(self.buffers)
            try:
                attributes[name] = self.describe(held, level + 1)
            except InputError:
                if not name.startswith("_"):
                    raise
                del self.memory[before:], self.buffers[before:]
        return attributes

    def _add_array(self, array: Any) -> int:
        """Add an array to `memory` and `buffers`. Return the array's index there."""
        whole = np.ascontiguousarray(array)
        try:
            described = whole.dtype.descr if whole.dtype.names else whole.dtype.str
        except ValueError as error:
            raise _cannot_be_sent(f"an array of {whole.dtype} ({error})", "use repack_fields in collate_fn") from error
        self.memory.append({"array": described, "shape": list(array.shape)})
        self.buffers.append(_bytes_of(whole))
        return len(self.memory) - 1

    def _add_tensor(self, tensor: torch.Tensor) -> int:
        """Add a tensor to `memory` and `buffers`. Keep an order such as channels_last. Return the tensor's index."""
        name = str(tensor.dtype).removeprefix("torch.")
        if tensor.is_nested or tensor.layout != torch.strided or name not in DTYPES:
            kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
            raise _cannot_be_sent(f"a {kind} tensor of {name}", "have collate_fn return a dense, unquantized tensor")
        described: dict[str, Any] = {"tensor": name, "shape": list(tensor.shape)}
        if tensor.requires_grad:
            described["grad"] = True
        if not tensor.is_contiguous():
            order = sorted(range(tensor.dim()), key=lambda axis: -tensor.stride(axis))
            if tensor.permute(order).is_contiguous():
                tensor, described["order"] = tensor.permute(order), order
        self.memory.append(described)
        self.buffers.append(_memory_of(tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()))
        return len(self.memory) - 1


def _name(kind: type) -> str:
    if "<locals>" in kind.__qualname__:
        advice = f"define {kind.__name__} at the top level of the script or of a module, where ranks find it"
        raise _cannot_be_sent(f"a {kind.__qualname__}", advice)
    return f"{kind.__module__}:{kind.__qualname__}"


def _cannot_be_sent(part: str, advice: str) -> InputError:
    return InputError(f"a batch with {part} cannot be sent: {advice}")


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
            self._described, self.state = record["batch"], record.get("state")
            self.skipped = [(index, str(error)) for index, error in record["skipped"]]
            self._memory = dict(enumerate(map(self._allocated, record["memory"])))
        except _UNREADABLE as error:
            raise InputError(f"a batch's header cannot be read ({error!r:.300})") from error
        if self._left:
            raise InputError(f"a batch has {self._left:,} bytes that its header does not mention")

    def batch(self) -> Any:
        """Make the batch from the filled buffers. Raises `InputError`."""
        try:
            return self._made(self._described)
        except _UNREADABLE as error:
            raise InputError(f"a part of a batch does not fit its type ({error!r:.300})") from error

    def _allocated(self, described: dict[str, Any]) -> Any:
        """Allocate the tensor or array for an entry of `memory`. Append its buffer, not filled yet, to `buffers`."""
        if "array" in described:
            dtype = np.lib.format.descr_to_dtype(_fields(described["array"]))  # np.dtype() would make padding a field
            _require(not dtype.hasobject, "an array of objects")
            array = np.empty(self._size(described["shape"], dtype.itemsize), dtype)
            self.buffers.append(_bytes_of(array))
            return array
        dtype = DTYPES[described["tensor"]]
        shape = self._size(described["shape"], dtype.itemsize)
        order = described.get("order") or list(range(len(shape)))
        _require(sorted(order) == list(range(len(shape))) and all(type(axis) is int for axis in order), "no order")
        tensor = torch.empty([shape[axis] for axis in order], dtype=dtype, pin_memory=self._pin)
        self.buffers.append(_memory_of(tensor))
        if described.get("order"):
            tensor = tensor.permute([order.index(axis) for axis in range(len(shape))])
        return tensor.requires_grad_(described.get("grad") is True and (dtype.is_floating_point or dtype.is_complex))

    def _size(self, shape: Any, item_bytes: int) -> tuple[int, ...]:
        """Check a shape, and subtract its size from the payload bytes that are left."""
        sizes = tuple(shape)
        _require(len(sizes) <= MOST_DIMENSIONS and all(type(size) is int and size >= 0 for size in sizes), "no shape")
        self._left -= math.prod(sizes) * item_bytes
        _require(self._left >= 0, "more bytes than were announced")
        return sizes

    def _made(self, node: dict[str, Any], level: int = 0) -> Any:
        """Return the part of the batch that an entry of the header describes."""
        _require(level <= MOST_LEVELS, "too many levels")

        def each_of(nodes: Iterable[Any]) -> list[Any]:
            return [self._made(each, level + 1) for each in nodes]

        if "v" in node:
            _require(type(node["v"]) in PLAIN, "no plain value")
            return node["v"]
        if "scalar" in node:
            return self._memory.pop(node["scalar"])[()]  # pop allows one use: a message cannot ask for many copies
        if "bytes" in node:
            return self._memory.pop(node["bytes"]).tobytes()
        if "written" in node:
            return WRITTEN[node["written"]][2](str(node["text"]))
        if "enum" in node:
            return _class(node["enum"], lambda kind: issubclass(kind, enum.Enum)).__members__[node["member"]]
        for kind in SEQUENCES:
            if kind.__name__ in node:
                return kind(each_of(node[kind.__name__]))
        if "dict" in node:
            return dict(zip(node["dict"], each_of(node["of"]), strict=True))
        if "named" in node:  # `_make` checks the number of parts; the class's own `__new__` might change them
            named = _class(node["named"], lambda kind: issubclass(kind, tuple) and hasattr(kind, "_fields"))
            return named._make(each_of(node["of"]))
        held = node.get("attributes", {})
        _require(not any(name.startswith("__") for name in held), "an attribute name begins with __")
        attributes = dict(zip(held, each_of(held.values()), strict=True))
        if "object" in node:
            return _object(node["object"], attributes)
        if "mapping" in node:
            found = _class(node["mapping"], lambda kind: issubclass(kind, MAPPINGS))
            made = found(dict(zip(each_of(node["keys"]), each_of(node["of"]), strict=True)))
            if node.get("default") in DEFAULTS:
                made = defaultdict(DEFAULTS[node["default"]], made)
        else:
            made = self._memory.pop(node["memory"])
            if "subclass" in node:
                found = _class(node["subclass"], is_plain_tensor)
                with torch._C.DisableTorchFunctionSubclass():  # `__torch_function__` may read attributes not set yet
                    made = made.detach().as_subclass(found).requires_grad_(made.requires_grad)
        if attributes:
            vars(made).update(attributes)
        return made


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


def _object(name: str, attributes: Mapping[str, Any]) -> Any:
    """Make an object of the named class, and set its attributes. No code of the class runs."""
    kind = _class(name, lambda kind: dataclasses.is_dataclass(kind) or is_plain(kind))
    made = object.__new__(kind)
    if not dataclasses.is_dataclass(kind):
        vars(made).update(attributes)
        return made
    _require({each.name for each in dataclasses.fields(kind)} <= attributes.keys(), f"{kind} has other fields here")
    for attribute, value in attributes.items():
        object.__setattr__(made, attribute, value)  # a dataclass may have slots
    return made


def _fields(described: Any) -> Any:
    """Return a dtype's description from JSON. Lists become tuples, which NumPy needs for a structured dtype."""
    if not isinstance(described, list):
        return described
    return [(name, _fields(kind), *map(tuple, shape)) for name, kind, *shape in described]


def _bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    """Return a view of a contiguous array's memory."""
    return memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]


def _memory_of(tensor: torch.Tensor) -> memoryview:
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
