"""What a batch may be made of comes out as it went in; what is no batch is refused, and nothing else happens."""

import collections
import contextlib
import dataclasses
import enum
import json

import numpy as np
import pytest
import torch
from headrace.errors import InputError
from headrace.torch.arriving import Arriving
from headrace.torch.message import MOST_BATCH_BYTES, Malformed, encode
from hypothesis import given
from hypothesis import strategies as st

Pair = collections.namedtuple("Pair", "x y")


@dataclasses.dataclass(frozen=True)
class Sample:
    image: torch.Tensor
    boxes: list


class Encoding(collections.UserDict):
    """As the BatchEncoding of Hugging Face."""


@dataclasses.dataclass
class Padded:
    lengths: list

    def __post_init__(self):
        self.mask = torch.ones(max(self.lengths))


class TwoTensors:
    """A batch as PyTorch's documentation has one, for its own `pin_memory`."""

    def __init__(self, samples):
        self.inputs, self.targets = (torch.stack(each) for each in zip(*samples, strict=True))

    def pin_memory(self):
        return self


class Box:
    def __init__(self, held):
        self.held = held


class Format(enum.Enum):
    XYXY, XYWH = "xyxy", "xywh"


class Boxes(torch.Tensor):
    """As the tv_tensors of torchvision, and the MetaTensor of MONAI."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        """Torchvision's looks at an attribute of each."""
        for each in args:
            assert not isinstance(each, Boxes) or vars(each)
        return super().__torch_function__(function, types, args, kwargs or {})

    @classmethod
    def of(cls, data, **attributes):
        boxes = torch.as_tensor(data).as_subclass(cls)
        vars(boxes).update(attributes)
        return boxes


class Slotted:
    __slots__ = ("x",)


class Pickled:
    def __setstate__(self, state):
        raise AssertionError("nothing calls it")


class Deleted:
    def __del__(self):
        pass


class Wrapping(torch.Tensor):
    """Has no memory of its own."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError


def travel(batch, skipped=()):
    header, buffers = encode(batch, skipped)
    payload = b"".join(bytes(each) for each in buffers)
    return receive(header, payload)


def receive(header, payload):
    arriving = Arriving(header, len(payload))
    for buffer in arriving.buffers:
        buffer[:], payload = payload[: buffer.nbytes], payload[buffer.nbytes :]
    return arriving.batch()


def same(one, other):
    assert type(one) is type(other)
    if isinstance(one, (Box, Boxes)) and not same(vars(one), vars(other)):
        return False
    if isinstance(one, Box):
        return True
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and one.shape == other.shape
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
    if dataclasses.is_dataclass(one):
        return all(same(getattr(one, each.name), getattr(other, each.name)) for each in dataclasses.fields(one))
    return one == other or (one != one and other != other)


DTYPES = [torch.uint8, torch.int64, torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.float8_e4m3fn]
tensors = st.builds(
    lambda dtype, shape: (torch.rand(shape) * 2).to(dtype),
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3), max_size=3),
)
arrays = st.builds(
    lambda dtype, shape: np.zeros(shape, dtype), st.sampled_from(["<f4", ">i2", "U3", "M8[s]", "?"]),
    st.lists(st.integers(0, 3), max_size=3),
)  # fmt: skip
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


class Grown(collections.namedtuple("Grown", "count")):
    def __new__(cls, count):
        return super().__new__(cls, count + 1)


ALIGNED = np.dtype([("a", "u1"), ("b", "<i4"), ("c", [("d", "<f4", (2,)), ("e", "U2")])], align=True)


@pytest.mark.parametrize(
    "batch",
    [
        torch.arange(5.0).reshape(1, 5)[:, -1],
        torch.arange(6.0).reshape(1, 3, 2)[:, 1:2, 1:],
        np.zeros(3, ALIGNED),
        np.ones(3, ALIGNED)[["b"]],
        Grown(1),
    ],
    ids=[
        "one row's column",
        "one element",
        "aligned fields within fields",
        "some fields",
        "a named tuple's own __new__",
    ],
)
def test_what_is_uncommon_comes_out_as_it_went_in(batch):
    assert same(travel(batch), batch)


@given(values)
def test_any_batch_comes_out_as_it_went_in(batch):
    assert same(travel(batch), batch)


@pytest.mark.parametrize(
    "tensor",
    [torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.rand(4, 3).T, torch.rand(3, 4)[:, ::2],
     torch.rand(3, 1).expand(3, 4), torch.rand(2, 3, 4).permute(2, 0, 1)],
    ids=["channels_last", "transposed", "a part", "expanded", "permuted"],
)  # fmt: skip
def test_a_tensors_memory_lies_as_it_lay_where_it_has_no_gaps(tensor):
    there = travel(tensor)
    assert torch.equal(there, tensor)
    dense = tensor.numel() == tensor.untyped_storage().nbytes() // 4
    assert there.stride() == (tensor.stride() if dense else tensor.contiguous().stride())


def test_inputs_that_need_gradients_still_do():
    needs, does_not = travel((torch.rand(3, requires_grad=True), torch.rand(3)))
    assert needs.requires_grad and needs.is_leaf and not does_not.requires_grad


def test_what_a_dataclass_made_of_its_fields_comes_too():
    assert torch.equal(travel(Padded([2, 3])).mask, torch.ones(3))


def test_an_object_of_a_plain_class_comes_with_its_attributes():
    batch = travel(TwoTensors([(torch.ones(2), torch.zeros(1)), (torch.rand(2), torch.ones(1))]))
    assert type(batch) is TwoTensors and batch.pin_memory() is batch
    assert batch.inputs.shape == (2, 2) and torch.equal(batch.targets, torch.tensor([[0.0], [1.0]]))


def test_a_tensor_of_a_subclass_comes_as_one_with_its_attributes():
    sent = Boxes.of([[1.0, 2.0, 3.0, 4.0]], format=Format.XYXY, canvas_size=(5, 6), of={"mean": torch.ones(1)})
    came = travel([sent.requires_grad_()])[0]
    assert type(came) is Boxes and came.requires_grad and came.is_leaf
    assert torch.equal(came.as_subclass(torch.Tensor), sent.as_subclass(torch.Tensor))
    assert came.format is Format.XYXY and came.canvas_size == (5, 6) and torch.equal(came.of["mean"], torch.ones(1))


def test_an_array_in_a_file_comes_as_an_array(tmp_path):
    filed = np.memmap(tmp_path / "array", np.int16, "w+", shape=(3,))
    filed[:] = 1, 2, 3
    assert travel(filed).tolist() == [1, 2, 3]


def test_a_class_that_ranks_cannot_find_is_refused_where_it_is_sent():
    @dataclasses.dataclass
    class Inner:
        x: int

    with pytest.raises(InputError, match="define Inner at the top level"):
        encode(Inner(1))


def test_a_dict_with_defaults_comes_as_a_dict():
    assert type(travel(collections.defaultdict(list, {"a": 1}))) is dict


def test_a_number_of_numpys_stays_one():
    assert type(travel(np.float32(1.5))) is np.float32 and travel(np.float32(1.5)) == 1.5


def test_each_tensor_has_memory_of_its_own():
    images, labels = travel((torch.zeros(4, 100), torch.zeros(4, dtype=torch.int64)))
    assert labels.untyped_storage().nbytes() == 32 and images.untyped_storage().nbytes() == 1600


@pytest.mark.parametrize(
    "batch",
    [
        torch.eye(3).to_sparse(),
        object(),
        bytearray(3),
        lambda: 0,
        np.array([object()]),
        {"key": object()},
        Slotted(),
        Pickled(),
        Deleted(),
        Wrapping(torch.ones(2)),
        TwoTensors,
        torch.nn.Linear(1, 1),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    ],
)
def test_what_cannot_travel_is_refused_and_says_what_to_do(batch):
    with pytest.raises(InputError, match="cannot travel: "):
        encode(batch)


@pytest.mark.parametrize(
    ("node", "payload"),
    [
        ({"tensor": "uint8", "shape": [1 << 40]}, 10), ({"tensor": "uint8", "shape": [-1]}, 0),
        ({"tensor": "uint8", "shape": ["3"]}, 3), ({"tensor": "quint8", "shape": [1]}, 1),
        ({"tensor": "uint8", "shape": [1] * 65}, 1), ({"tensor": "uint8", "shape": [3]}, 4),
        ({"array": "O", "shape": [1]}, 8), ({"array": [["x", "O"]], "shape": [1]}, 8), ({"array": "", "shape": []}, 0),
        ({"bytes": -1}, 0), ({"bytes": 1 << 50}, 3), ({"list": 3}, 0), ({"dict": [[]], "of": [{"v": 1}]}, 0),
        ({"named": "os:system", "of": [{"v": "true"}]}, 0), ({"named": "builtins:tuple", "of": []}, 0),
        ({"data": "subprocess:Popen", "fields": ["args"], "of": [{"v": "true"}]}, 0),
        ({"data": "headrace.job:InstanceGroup", "fields": ["name"], "of": [{"v": 1}]}, 0),
        ({"object": "subprocess:Popen", "fields": ["pid"], "of": [{"v": 1}]}, 0),
        ({"object": "os:environ", "fields": [], "of": []}, 0), ({"object": "builtins:int", "fields": [], "of": []}, 0),
        ({"object": f"{__name__}:TwoTensors", "fields": ["__class__"], "of": [{"v": 1}]}, 0),
        ({"object": f"{__name__}:TwoTensors", "fields": ["inputs"], "of": []}, 0),
        ({"subclass": f"{__name__}:TwoTensors", "fields": [], "of": [{"v": 1}]}, 0),
        ({"subclass": f"{__name__}:Boxes", "fields": [], "of": [{"v": 1}]}, 0),
        ({"subclass": f"{__name__}:Boxes", "fields": [], "of": []}, 0),
        ({"enum": f"{__name__}:Format", "member": "mro"}, 0), ({"enum": "os:environ", "member": "PATH"}, 0),
        ({"v": []}, 0), ({}, 0), ([], 0), (None, 0), ({"dict": ["a"], "of": []}, 0),
    ],
)  # fmt: skip
def test_a_header_that_is_no_batch_is_refused_before_memory_is_taken(node, payload):
    header = json.dumps({"batch": node, "skipped": []}).encode()
    with pytest.raises(Malformed):
        receive(header, bytes(payload))


@given(values, st.data())
def test_a_changed_header_is_refused_or_another_batch_and_never_anything_else(batch, data):
    header, buffers = encode(batch)
    payload = b"".join(bytes(each) for each in buffers)
    changed = bytearray(header)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(changed) - 1))
        changed[place : place + 1] = data.draw(st.binary(max_size=3))
        if not changed:
            break
    with contextlib.suppress(InputError):
        receive(bytes(changed), payload)


def test_deep_nesting_ends_in_an_error():
    deep = []
    for _ in range(100):
        deep = [deep]
    with pytest.raises(InputError, match="nested deeper"):
        encode(deep)
    with pytest.raises(Malformed):
        Arriving(b'{"skipped":[],"batch":' + b'{"list":[' * 100_000, 0)


def test_a_batch_of_more_than_the_limit_is_refused():
    eighth = np.zeros(MOST_BATCH_BYTES // 8, np.uint8)  # never touched, so it takes no memory
    with pytest.raises(InputError, match="8 GiB"):
        encode([eighth] * 9)


def test_texts_of_numpys_travel_even_when_they_are_empty():
    assert travel([np.str_(""), np.str_("a"), np.bytes_(b"")]) == ["", "a", b""]
