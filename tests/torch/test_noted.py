"""What a training loop notes on its dataset is no change of it, as long as no code that makes samples may read it."""

import dataclasses
import functools
import types

import pytest
import torch
from headrace.torch import remade
from headrace.torch.noted import noted
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from tests.torch.readers import (
    BelowADecorator,
    ByAClass,
    ByAFunction,
    ByAGlobalObject,
    ByAMethod,
    ByAName,
    ByAProperty,
    ByItsDict,
    ByTransforms,
    InAText,
    InSetEpoch,
    Plain,
    many,
    plain,
)


class Trainer:
    """Reads what it has noted, but no sample does."""

    def __init__(self, data):
        self.data = data

    def report(self):
        return sum(self.data.losses) / len(self.data.history)


class Opened(Plain):
    """As files are opened by whoever makes the first sample."""

    def __getitem__(self, index):
        return getattr(self, "file", None) or index


@dataclasses.dataclass
class OfFields(Dataset):
    size: int = 8
    losses: list = dataclasses.field(default_factory=list)

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return index


with_owner = Plain()
with_owner.owner = Trainer(with_owner)


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (Plain(), ["losses"]),
        (Plain(), ["history", "losses"]),
        (with_owner, ["losses", "owner"]),
        (Opened(), ["losses"]),
        (OfFields(), ["losses"]),
        (Subset(Plain(), range(4)), ["dataset.losses"]),
        (Plain(inner=Plain()), ["inner.losses"]),
        (Plain(transforms=[torch.nn.Identity(), abs, "a", functools.partial(max, 1)]), ["losses"]),
    ],
    ids=["losses", "two of them", "a trainer", "a file", "a dataclass", "a subset", "within", "transforms"],
)
def test_what_no_sample_reads_is_noted(data, names):
    assert noted([*names, "size"], data, None) == names


Foreign = types.new_class("Foreign", (Dataset,))
Foreign.__module__ = "numpy"


class OnAForeignBase(Foreign):
    losses = 0

    def __getitem__(self, index):
        return index


def collated(samples):
    return torch.utils.data.get_worker_info().dataset.losses


@pytest.mark.parametrize(
    ("data", "collate_fn"),
    [
        *((kind(), None) for kind in (ByAFunction, ByAName, ByItsDict, ByAProperty, ByAMethod, InSetEpoch, InAText)),
        *((kind(), None) for kind in (BelowADecorator, ByAGlobalObject, ByAClass)),
        (ByTransforms(transforms=many), None),
        (Plain(), collated),
        (Plain(), functools.partial(collated)),
        (Plain(), Trainer(plain).report),
    ],
)
def test_what_any_code_may_read_that_makes_samples_is_not(data, collate_fn):
    assert noted(["losses"], data, collate_fn) == []


class Later(Subset):
    """Has no code of its own that makes samples."""


@pytest.mark.parametrize("kind", [Subset, Later])
def test_what_torchs_own_datasets_read_is_not_noted(kind):
    data = kind(Plain(), [1, 2])
    data.seen = 0
    assert noted(["indices", "dataset.size", "dataset.losses", "seen"], data, None) == ["dataset.losses", "seen"]
    assert noted(["datasets"], ConcatDataset([Plain()]), None) == []
    assert noted(["tensors"], TensorDataset(torch.zeros(1)), None) == []


def test_of_a_librarys_kind_of_dataset_nothing_is_known():
    data = OnAForeignBase()
    data.losses = 1
    assert noted(["losses"], data, None) == []


def test_settings_globals_and_what_is_told_as_a_whole_are_never_noted():
    data = Plain(settings=types.SimpleNamespace(unread=1))
    names = ["settings.unread", "global losses", "collate_fn.losses", "others", "type", "itself"]
    assert noted(names, data, None) == []


def test_a_loop_may_note_on_its_dataset_what_data_hosts_do_not_see(feeds, capsys, monkeypatch):
    looks = type(remade._looks)(remade._Looks)
    monkeypatch.setattr(remade, "_looks", looks)
    data = Plain()
    address = feeds.serve(1, Plain(), 4)
    loader = feeds.loader([address], data, 4)
    for epoch in range(3):
        for batch in loader:
            for index in batch.tolist():
                data.losses[index] += epoch + 1.0
        data.history.append(epoch)
    said = capsys.readouterr().out
    assert said.count("data hosts do not see what the script has changed of the dataset") == 1
    assert "(history, losses); no code that makes samples names it" in said
