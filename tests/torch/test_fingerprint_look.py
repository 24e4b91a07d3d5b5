"""Of settings that a dataset holds, those count that its samples may be made of; records in a list count whole."""

import argparse
import dataclasses
import functools

import pytest
import torch
from headrace.torch.fingerprint import fingerprint
from headrace.torch.sampling.rank_agreement import differing
from torch.utils.data import ConcatDataset, Dataset, Subset

from tests.torch.test_fingerprint import Files
from tests.torch.test_roughly import Record


@dataclasses.dataclass
class Settings:
    size: int
    gpus: int = 0


class Resized(Dataset):
    def __init__(self, settings):
        self.settings = settings

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return resized(index, self.settings)


def resized(index, settings):
    return index * settings.size


class ByItsBase(Resized):
    def __getitem__(self, index):
        return super().__getitem__(index)


class Resizing:
    def __init__(self, settings):
        self.settings = settings

    def __call__(self, value):
        return value * self.settings.size


def collate(samples, settings):
    return torch.tensor(samples) * settings.size


@pytest.mark.parametrize("kind", [argparse.Namespace, Settings])
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    "holding",
    [
        Resized, ByItsBase, Resizing, lambda settings: ConcatDataset([Resized(settings)]),
        lambda settings: Subset(Resized(settings), [0]), lambda settings: Files(["a"], transform=Resizing(settings)),
        lambda settings: functools.partial(collate, settings=settings),
    ],
)  # fmt: skip
def test_of_settings_what_samples_read_counts_and_what_is_a_hosts_own_does_not(kind, exact, holding):
    first = fingerprint(holding(kind(size=8, gpus=0)), exact)
    assert first == fingerprint(holding(kind(size=8, gpus=4)), exact)
    assert first != fingerprint(holding(kind(size=16, gpus=0)), exact)


def test_the_setting_that_differs_is_named_and_where_output_goes_is_none():
    def of(**other):
        given = {"size": 8, "root": "train", "output_dir": "run", "save_path": "run", "timestamp": 1.5}
        return {"made_of": fingerprint(Resized(argparse.Namespace(**given | other)))}

    assert differing(of(), of(output_dir="run-2", save_path="elsewhere", timestamp=3.5)) == ""
    assert differing(of(), of(root="test", output_dir="run-2")) == "dataset.settings.root"


class OfRecords(Dataset):
    def __init__(self, records):
        self.records = records

    def __getitem__(self, index):
        return self.records[index].load()


@pytest.mark.parametrize("kind", [Record, lambda name: argparse.Namespace(name=name)])
def test_records_in_a_list_count_as_they_are(kind):
    assert fingerprint(OfRecords([kind("a"), kind("b")])) != fingerprint(OfRecords([kind("a"), kind("c")]))
