"""A batch of any kind arrives as it was sent, and the dataset's state arrives with it."""

import collections
import dataclasses
import datetime
from decimal import Decimal
from pathlib import Path
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import torch
from headrace.errors import InputError
from headrace.torch.feed.codec import encode
from hypothesis import given

from tests.torch.batches import Boxes, Format, Output, Padded, Tokenized, TwoTensors, received, same, travel, values


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
        [Path("/a/b.jpg"), {"when": datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.timezone.utc)}],
        (datetime.date(2026, 1, 2), Decimal("0.10"), UUID(int=7)),
        {b"ab": torch.ones(2), b"cde": np.arange(3)},
    ],
    ids=[
        "one row's column",
        "one element",
        "aligned fields within fields",
        "some fields",
        "a named tuple's own __new__",
        "a path and a moment",
        "a day, a price and a name",
        "keys with memory of their own",
    ],
)
def test_what_is_uncommon_comes_out_as_it_went_in(batch):
    assert same(travel(batch), batch)


@given(values)
def test_any_batch_comes_out_as_it_went_in(batch):
    assert same(travel(batch), batch)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.rand(4, 3).T,
        torch.rand(3, 4)[:, ::2],
        torch.rand(3, 1).expand(3, 4),
        torch.rand(2, 3, 4).permute(2, 0, 1),
    ],
    ids=["channels_last", "transposed", "a part", "expanded", "permuted"],
)
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


def test_a_dict_with_defaults_comes_as_one_if_all_know_how_they_are_made():
    there = travel(collections.defaultdict(list, {"a": [1]}))
    assert type(there) is collections.defaultdict and there == {"a": [1]} and there["b"] == []
    assert type(travel(collections.defaultdict(lambda: 7, {"a": 1}))) is dict


class Sized(dict):
    size = 0


class Attributes(dict):
    """A dict whose entries are its attributes, as many projects have one."""

    def __init__(self, *args):
        super().__init__(*args)
        self.__dict__ = self


def test_what_a_dict_or_a_tensor_holds_beside_its_entries_comes_too():
    batch = Sized(x=torch.ones(2))
    batch.size, batch.lengths = 8, torch.arange(3)
    there = travel(batch)
    assert type(there) is Sized and there.size == 8 and there.lengths.tolist() == [0, 1, 2] and there["x"].sum() == 2
    scaled = torch.ones(2)
    scaled.scale, scaled.words = 2.5, ["a"]
    assert (travel([scaled])[0].scale, travel([scaled])[0].words) == (2.5, ["a"])
    assert travel(Attributes({"a": 1})).a == 1


def test_entries_that_are_attributes_too_travel_once():
    output = Output()
    output.logits = torch.ones(2)
    _, buffers = encode(output)
    assert len(buffers) == 1 and type(travel(output)) is Output


def test_a_mappings_private_attribute_that_cannot_travel_is_its_constructors():
    sent = Tokenized({"ids": torch.arange(3)}, [torch.ones(1), object()], words=[0, 1, 1])
    there = travel([sent, torch.arange(4)])
    assert type(there[0]) is Tokenized and there[0]["ids"].tolist() == [0, 1, 2]
    assert (there[0]._encodings, there[0]._words, there[1].tolist()) == (None, [0, 1, 1], [0, 1, 2, 3])


def test_a_mappings_public_attribute_that_cannot_travel_is_refused():
    batch = Sized(x=1)
    batch.size = object()
    with pytest.raises(InputError, match="object cannot be sent"):
        encode(batch)


@pytest.mark.parametrize(
    "state",
    [{"at": 7, "of": {"shard": "b"}}, [], 0],
    ids=["plain", "an empty list", "a number"],
)
def test_a_datasets_state_comes_beside_its_batch(state):
    header, buffers = encode([torch.ones(2), b"a"], [(3, "broken")], state)
    batch, skipped, there = received(header, b"".join(bytes(each) for each in buffers))
    assert batch[0].tolist() == [1, 1] and batch[1] == b"a" and skipped == [(3, "broken")] and same(there, state)


def test_a_batch_without_state_has_none():
    header, _ = encode(1)
    assert received(header, b"") == (1, [], None)


def test_a_moment_that_its_text_does_not_tell_is_refused():
    for moment in (
        datetime.datetime(2026, 1, 2, tzinfo=ZoneInfo("Europe/Berlin")),
        datetime.datetime(2026, 1, 2, fold=1),
    ):
        with pytest.raises(InputError, match="have collate_fn return its isoformat"):
            encode([moment])


def test_a_number_of_numpys_stays_one():
    assert type(travel(np.float32(1.5))) is np.float32 and travel(np.float32(1.5)) == 1.5


def test_each_tensor_has_memory_of_its_own():
    images, labels = travel((torch.zeros(4, 100), torch.zeros(4, dtype=torch.int64)))
    assert labels.untyped_storage().nbytes() == 32 and images.untyped_storage().nbytes() == 1600


def test_texts_of_numpys_travel_even_when_they_are_empty():
    assert travel([np.str_(""), np.str_("a"), np.bytes_(b"")]) == ["", "a", b""]
