"""Batches of all kinds that can be sent, and functions that send and receive them in a test."""

import collections
import dataclasses
import datetime
import enum
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import numpy as np
import torch
from headrace.torch.feed.codec import Decoder, encode
from hypothesis import strategies as st

Pair = collections.namedtuple("Pair", "x y")


@dataclasses.dataclass(frozen=True)
class Sample:
    image: torch.Tensor
    boxes: list


class Grown(collections.namedtuple("Grown", "count")):
    def __new__(cls, count):
        return super().__new__(cls, count + 1)


class Encoding(collections.UserDict):
    """A mapping like Hugging Face's BatchEncoding."""


@dataclasses.dataclass
class Padded:
    lengths: list

    def __post_init__(self):
        self.mask = torch.ones(max(self.lengths))


class Output(collections.OrderedDict):
    """A mapping like Hugging Face's ModelOutput, whose entries are also attributes."""

    def __setattr__(self, name, value):
        super().__setitem__(name, value)
        super().__setattr__(name, value)


class Tokenized(collections.UserDict):
    """A mapping like the BatchEncoding of Hugging Face's fast tokenizers."""

    def __init__(self, data=None, encodings=None, words=None):
        super().__init__(data)
        self._encodings, self._words = encodings, words


class TwoTensors:
    """A batch with a `pin_memory` of its own, as in PyTorch's documentation."""

    def __init__(self, samples):
        self.inputs, self.targets = (torch.stack(each) for each in zip(*samples, strict=True))

    def pin_memory(self):
        return self


class Box:
    def __init__(self, held):
        self.held = held


class Sized(dict):
    size = 0


class Format(enum.Enum):
    XYXY, XYWH = "xyxy", "xywh"


class Boxes(torch.Tensor):
    """A tensor with attributes, like torchvision's tv_tensors and MONAI's MetaTensor."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        """Like torchvision's `__torch_function__`, fail if a tensor has no attributes of its own yet."""
        for each in args:
            assert not isinstance(each, Boxes) or vars(each)
        return super().__torch_function__(function, types, args, kwargs or {})

    @classmethod
    def of(cls, data, **attributes):
        return holding(torch.as_tensor(data).as_subclass(cls), **attributes)


OBJECTS = (torch.Tensor, Box, Padded, Sample, Sized, TwoTensors)


def holding(value, **attributes):
    """Return the value with these attributes."""
    vars(value).update(attributes)
    return value


def travel(batch):
    header, buffers = encode(batch)
    return receive(header, b"".join(bytes(each) for each in buffers))


def receive(header, payload):
    return received(header, payload)[0]


def received(header, payload):
    """Return the batch, the samples left out of it, and the dataset's state."""
    decoder = Decoder(header, len(payload))
    for buffer in decoder.buffers:
        buffer[:], payload = payload[: buffer.nbytes], payload[buffer.nbytes :]
    return decoder.batch(), decoder.skipped, decoder.state


def same(one, other):
    """Return whether two values are equal to the last bit. Fail if their types or those of their parts differ."""
    assert type(one) is type(other)
    if isinstance(one, OBJECTS) and not same(vars(one), vars(other)):
        return False
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape, one.requires_grad) == (other.dtype, other.shape, other.requires_grad)
        assert other.is_leaf
        flat = [each.as_subclass(torch.Tensor).detach() for each in (one, other)]
        flat = [each.clone(memory_format=torch.contiguous_format) for each in flat]
        flat = [each.reshape(-1).view(torch.uint8) if each.numel() else each for each in flat]
        return torch.equal(*flat)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, (dict, collections.UserDict)):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return isinstance(one, OBJECTS) or one == other or (one != one and other != other)


ALIGNED = np.dtype([("a", "u1"), ("b", "<i4"), ("c", [("d", "<f4", (2,)), ("e", "U2")])], align=True)
UNCOMMON = {
    "one row's column": torch.arange(5.0).reshape(1, 5)[:, -1],
    "one element": torch.arange(6.0).reshape(1, 3, 2)[:, 1:2, 1:],
    "inputs that need gradients": (torch.rand(3, requires_grad=True), torch.rand(3)),
    "a tensor with attributes": [holding(torch.ones(2), scale=2.5, words=["a"])],
    "a tensor of a subclass": [Boxes.of([[1.0, 2.0]], kind=Format.XYXY, size=(5, 6)).requires_grad_()],
    "aligned fields within fields": np.zeros(3, ALIGNED),
    "some fields": np.ones(3, ALIGNED)[["b"]],
    "a number of NumPy's": np.float32(1.5),
    "a named tuple's own __new__": Grown(1),
    "what a dataclass made of its fields": Padded([2, 3]),
    "an object of a plain class": TwoTensors([(torch.ones(2), torch.zeros(1)), (torch.rand(2), torch.ones(1))]),
    "a dict with attributes": holding(Sized(x=torch.ones(2)), size=8, lengths=torch.arange(3)),
    "path and moment": [Path("/a/b.jpg"), {"when": datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.timezone.utc)}],
    "a day, a price and a name": (datetime.date(2026, 1, 2), Decimal("0.10"), UUID(int=7)),
    "keys with memory of their own": {b"ab": torch.ones(2), b"cde": np.arange(3)},
}
DTYPES = [torch.uint8, torch.int64, torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.float8_e4m3fn]
tensors = st.builds(
    lambda dtype, shape: (torch.rand(shape) * 2).to(dtype),
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3), max_size=3),
)
arrays = st.builds(
    lambda dtype, shape: np.zeros(shape, dtype),
    st.sampled_from(["<f4", ">i2", "U3", "M8[s]", "?"]),
    st.lists(st.integers(0, 3), max_size=3),
)
plain = st.complex_numbers() | st.frozensets(st.integers()) | st.sets(st.text(max_size=3))
plain |= st.lists(st.integers(0, 9), max_size=3).map(torch.Size)
plain |= st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=20)
values = st.recursive(
    tensors | arrays | plain,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
        | st.dictionaries(st.tuples(st.integers(), st.text(max_size=2)), inner, max_size=2)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3).map(collections.OrderedDict)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3).map(Encoding)
        | st.builds(Pair, inner, inner)
        | st.builds(Sample, tensors, st.lists(inner, max_size=2))
        | st.builds(Box, inner)
        | st.builds(lambda data, inner: Boxes.of(data, kind=Format.XYWH, inner=inner), tensors, inner)
    ),
    max_leaves=10,
)
