"""The sender refuses batches that cannot be sent; the receiver refuses messages that cannot be batches."""

import contextlib
import json

import numpy as np
import pytest
import torch
from headrace.errors import InputError
from headrace.torch.feed.codec import MOST_BATCH_BYTES, Decoder, encode
from hypothesis import given
from hypothesis import strategies as st

from tests.torch import batches
from tests.torch.batches import TwoTensors, receive, values


class Slotted:
    __slots__ = ("x",)


class Pickled:
    def __setstate__(self, state):
        raise AssertionError("nothing calls it")


class Deleted:
    def __del__(self):
        pass


class Wrapping(torch.Tensor):
    """A tensor that has no memory of its own."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError


@pytest.mark.parametrize(
    "batch",
    [
        torch.eye(3).to_sparse(),
        object(),
        bytearray(3),
        lambda: 0,
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
    with pytest.raises(InputError, match="cannot be sent: "):
        encode(batch)


@pytest.mark.parametrize(
    ("memory", "payload"),
    [
        ({"tensor": "uint8", "shape": [1 << 40]}, 10),
        ({"tensor": "uint8", "shape": [-1]}, 0),
        ({"tensor": "uint8", "shape": ["3"]}, 3),
        ({"tensor": "quint8", "shape": [1]}, 1),
        ({"tensor": "uint8", "shape": [1] * 65}, 1),
        ({"tensor": "uint8", "shape": [3]}, 4),
        ({"tensor": "uint8", "shape": [1 << 62, 1 << 62, 0]}, 0),
        ({"tensor": "uint8", "shape": [1], "order": [1]}, 1),
        ({"array": "O", "shape": [1]}, 8),
        ({"array": [["x", "O"]], "shape": [1]}, 8),
        ({"array": "", "shape": []}, 0),
        ({"array": "|u1", "shape": [1 << 50]}, 3),
        ({}, 0),
        ([], 0),
        (None, 0),
    ],
)
def test_memory_that_a_batch_cannot_have_is_refused_before_it_is_taken(memory, payload):
    header = json.dumps({"batch": {"memory": 0}, "memory": [memory], "skipped": []}).encode()
    with pytest.raises(InputError):
        Decoder(header, payload)


TWO, BOXES, FORMAT = (f"{batches.__name__}:{name}" for name in ("TwoTensors", "Boxes", "Format"))


@pytest.mark.parametrize(
    "node",
    [
        {"list": 3},
        {"dict": [[]], "of": [{"v": 1}]},
        {"dict": ["a"], "of": []},
        {"named": "os:system", "of": [{"v": "true"}]},
        {"named": "builtins:tuple", "of": []},
        {"object": "subprocess:Popen", "attributes": {"args": {"v": "true"}}},
        {"object": "headrace.job.spec:InstanceGroup", "attributes": {"name": {"v": 1}}},
        {"object": "os:environ"},
        {"object": "builtins:int"},
        {"object": TWO, "attributes": {"__class__": {"v": 1}}},
        {"object": TWO, "attributes": ["inputs"]},
        {"memory": 0, "subclass": TWO},
        {"memory": 1, "subclass": BOXES},
        {"memory": 0, "subclass": BOXES, "attributes": {"__class__": {"v": 1}}},
        {"subclass": BOXES},
        {"enum": FORMAT, "member": "mro"},
        {"enum": "os:environ", "member": "PATH"},
        {"memory": 0, "attributes": {"__class__": {"v": 1}}},
        {"memory": 1, "attributes": {"name": {"v": 1}}},
        {"memory": 2},
        {"memory": "0"},
        {"bytes": 0},
        {"bytes": 2},
        {"list": [{"bytes": 1}, {"bytes": 1}]},
        {"list": [{"memory": -1}]},
        {"mapping": "builtins:dict", "keys": [], "of": [{"v": 1}]},
        {"mapping": "os:environ", "keys": [], "of": []},
        {"v": []},
        {},
        [],
        None,
    ],
)
def test_a_header_that_is_no_batch_is_refused(node):
    memory = [{"tensor": "uint8", "shape": [1]}, {"array": "|u1", "shape": [1]}]
    header = json.dumps({"batch": node, "memory": memory, "skipped": []}).encode()
    with pytest.raises(InputError):
        receive(header, bytes(2))


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
    with pytest.raises(InputError):
        Decoder(b'{"skipped":[],"memory":[],"batch":' + b'{"list":[' * 100_000, 0)


def test_a_batch_of_more_than_the_limit_is_refused():
    eighth = np.zeros(MOST_BATCH_BYTES // 8, np.uint8)  # never touched, so it takes no memory
    with pytest.raises(InputError, match="8 GiB"):
        encode([eighth] * 9)
    with pytest.raises(InputError, match="16 MiB of texts and single numbers"):
        encode({"text": "a" * (17 << 20)})
    with pytest.raises(InputError, match="Python objects cannot be sent: have collate_fn return the array's tolist"):
        encode([np.array([object()])])
