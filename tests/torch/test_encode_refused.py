"""The sender refuses batches that cannot be sent; the receiver refuses messages that cannot be batches."""

import contextlib
import json

import numpy as np
import pytest
import torch
from headrace.errors import InputError
from headrace.torch.feed.decode import Decoder
from headrace.torch.feed.encode import MOST_BATCH_BYTES, encode
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
    with pytest.raises(InputError, match="cannot be sent: "):
        encode(batch)


@pytest.mark.parametrize(
    ("node", "payload"),
    [
        ({"tensor": "uint8", "shape": [1 << 40]}, 10),
        ({"tensor": "uint8", "shape": [-1]}, 0),
        ({"tensor": "uint8", "shape": ["3"]}, 3),
        ({"tensor": "quint8", "shape": [1]}, 1),
        ({"tensor": "uint8", "shape": [1] * 65}, 1),
        ({"tensor": "uint8", "shape": [3]}, 4),
        ({"array": "O", "shape": [1]}, 8),
        ({"array": [["x", "O"]], "shape": [1]}, 8),
        ({"array": "", "shape": []}, 0),
        ({"bytes": -1}, 0),
        ({"bytes": 1 << 50}, 3),
        ({"list": 3}, 0),
        ({"dict": [[]], "of": [{"v": 1}]}, 0),
        ({"named": "os:system", "of": [{"v": "true"}]}, 0),
        ({"named": "builtins:tuple", "of": []}, 0),
        ({"data": "subprocess:Popen", "fields": ["args"], "of": [{"v": "true"}]}, 0),
        ({"data": "headrace.job.spec:InstanceGroup", "fields": ["name"], "of": [{"v": 1}]}, 0),
        ({"object": "subprocess:Popen", "fields": ["pid"], "of": [{"v": 1}]}, 0),
        ({"object": "os:environ", "fields": [], "of": []}, 0),
        ({"object": "builtins:int", "fields": [], "of": []}, 0),
        ({"object": f"{batches.__name__}:TwoTensors", "fields": ["__class__"], "of": [{"v": 1}]}, 0),
        ({"object": f"{batches.__name__}:TwoTensors", "fields": ["inputs"], "of": []}, 0),
        ({"subclass": f"{batches.__name__}:TwoTensors", "fields": [], "of": [{"v": 1}]}, 0),
        ({"subclass": f"{batches.__name__}:Boxes", "fields": [], "of": [{"v": 1}]}, 0),
        ({"subclass": f"{batches.__name__}:Boxes", "fields": [], "of": []}, 0),
        ({"enum": f"{batches.__name__}:Format", "member": "mro"}, 0),
        ({"enum": "os:environ", "member": "PATH"}, 0),
        ({"tensor": "uint8", "shape": [1 << 62, 1 << 62, 0]}, 0),
        ({"tensor": "uint8", "shape": [1], "order": [1]}, 1),
        ({"tensor": "uint8", "shape": [1], "names": ["__class__"], "values": [{"v": 1}]}, 1),
        ({"mapping": "builtins:dict", "keys": [], "of": [{"v": 1}]}, 0),
        ({"mapping": "os:environ", "keys": [], "of": []}, 0),
        ({"v": []}, 0),
        ({}, 0),
        ([], 0),
        (None, 0),
        ({"dict": ["a"], "of": []}, 0),
    ],
)
def test_a_header_that_is_no_batch_is_refused_before_memory_is_taken(node, payload):
    header = json.dumps({"batch": node, "skipped": []}).encode()
    with pytest.raises(InputError):
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
    with pytest.raises(InputError):
        Decoder(b'{"skipped":[],"batch":' + b'{"list":[' * 100_000, 0)


def test_a_batch_of_more_than_the_limit_is_refused():
    eighth = np.zeros(MOST_BATCH_BYTES // 8, np.uint8)  # never touched, so it takes no memory
    with pytest.raises(InputError, match="8 GiB"):
        encode([eighth] * 9)
    with pytest.raises(InputError, match="16 MiB of texts and single numbers"):
        encode({"text": "a" * (17 << 20)})
    with pytest.raises(InputError, match="array of Python objects cannot be sent: have collate_fn return its tolist"):
        encode([np.array([object()])])
