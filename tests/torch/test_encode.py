"""A batch of any kind arrives as it was sent, and the dataset's state arrives with it."""

import collections
import dataclasses
import datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import torch
from headrace.errors import InputError
from headrace.torch.feed.codec import encode
from hypothesis import given

from tests.torch.batches import UNCOMMON, Output, Sized, Tokenized, holding, received, same, travel, values


@pytest.mark.parametrize("batch", UNCOMMON.values(), ids=UNCOMMON)
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


class Attributes(dict):
    """A dict whose entries are also its attributes. Many projects define such a class."""

    def __init__(self, *args):
        super().__init__(*args)
        self.__dict__ = self


def test_a_dict_whose_entries_are_its_attributes_comes_as_one():
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
    with pytest.raises(InputError, match="object cannot be sent"):
        encode(holding(Sized(x=1), size=object()))


@pytest.mark.parametrize("state", [{"at": 7, "of": {"shard": "b"}}, [], 0, None])
def test_a_datasets_state_comes_beside_its_batch(state):
    header, buffers = encode([torch.ones(2), b"a"], [(3, "broken")], state)
    batch, skipped, there = received(header, b"".join(bytes(each) for each in buffers))
    assert batch[0].tolist() == [1, 1] and batch[1] == b"a" and skipped == [(3, "broken")] and same(there, state)


def test_a_moment_that_its_text_does_not_tell_is_refused():
    for moment in (
        datetime.datetime(2026, 1, 2, tzinfo=ZoneInfo("Europe/Berlin")),
        datetime.datetime(2026, 1, 2, fold=1),
    ):
        with pytest.raises(InputError, match="have collate_fn return the datetime's isoformat"):
            encode([moment])


def test_each_tensor_has_memory_of_its_own():
    images, labels = travel((torch.zeros(4, 100), torch.zeros(4, dtype=torch.int64)))
    assert labels.untyped_storage().nbytes() == 32 and images.untyped_storage().nbytes() == 1600


def test_texts_of_numpys_travel_even_when_they_are_empty():
    assert travel([np.str_(""), np.str_("a"), np.bytes_(b"")]) == ["", "a", b""]
