"""What the script changes and no attribute of its dataset tells: a batch made once more tells it."""

import os
import random
import shutil
import time

import numpy as np
import pytest
import torch
from headrace.torch import remade
from headrace.torch.remade import differing
from torch.utils.data import Dataset

from tests.support import wait_for

table = {"scale": torch.ones(2)}
network = torch.nn.Linear(1, 1)


def looked_up(x):
    return x * table["scale"].sum()


class Trainer:
    strength = 1.0

    def augment(self, x):
        return x + self.strength


trainer = Trainer()


class Sample(Dataset):
    """Makes samples with what it is given."""

    def __init__(self, make, size=8):
        self.make, self.size = make, size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return self.make(torch.tensor([float(index + 1)]))


def by_function(x):
    return looked_up(x)


def by_model(x):
    with torch.no_grad():
        return network(x)


def scaled(samples):
    return torch.stack(samples) * table["scale"][0]


def change_table():
    table["scale"] = torch.full([2], 3.0)


def change_model():
    torch.nn.init.constant_(network.weight, 9.0)


def change_trainer():
    trainer.strength = 5.0


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    yield monkeypatch.setattr(remade, "_looks", type(remade._looks)(remade._Looks))
    table["scale"], trainer.strength = torch.ones(2), 1.0


def looked():
    """Waits until what looks has ended."""
    for each in remade._looks.values():
        each.end()


def warnings_of(capfd):
    return [line for line in capfd.readouterr().out.splitlines() if line.startswith("warning:")]


@pytest.mark.parametrize(
    ("make", "change", "collate_fn"),
    [
        (by_function, change_table, None),
        (by_model, change_model, None),
        (trainer.augment, change_trainer, None),
        (torch.clone, change_table, scaled),
    ],
    ids=["a table that a called function reads", "a global model", "a bound method", "a tensor of collate_fn's"],
)
def test_what_no_attribute_tells_is_told_by_a_batch_made_once_more(feeds, capfd, make, change, collate_fn):
    data = Sample(make)
    address = feeds.serve(2, data, 4, collate_fn=collate_fn)
    loader = feeds.loader([address], data, 4, collate_fn=collate_fn)
    list(loader)
    looked()
    assert warnings_of(capfd) == []
    change()
    list(loader)
    looked()
    (warning,) = warnings_of(capfd)
    assert "loader 1, epoch 1; other: the batch" in warning
    for _ in range(3):
        list(loader)
    looked()
    assert warnings_of(capfd) == []  # it is said once


def of_the_system(x):
    return x + random.SystemRandom().random()


def of_the_process(x):
    return x + np.random.rand() + torch.rand(1) + random.random()


class OnDataHosts(Sample):
    def __getitem__(self, index):
        if "HERE" in os.environ:
            raise FileNotFoundError("this host has no such channel")
        return index


def test_a_batch_that_this_host_cannot_make_the_same_twice_is_no_reason_to_warn(feeds, capfd, monkeypatch):
    for data in Sample(of_the_system), Sample(of_the_process):
        loader = feeds.loader([feeds.serve(2, data, 4)], data, 4)
        list(loader)
        looked()
    data = OnDataHosts(None)
    loader = feeds.loader([feeds.serve(2, data, 4)], data, 4)
    monkeypatch.setenv("HERE", "1")
    list(loader)
    looked()
    assert warnings_of(capfd) == []


class Hangs(Sample):
    def __getitem__(self, index):
        if "HERE" in os.environ:
            time.sleep(600)
        return index


def test_a_sample_that_hangs_on_this_host_holds_nobody_up(feeds, monkeypatch):
    address = feeds.serve(2, Hangs(None), 4)
    loader = feeds.loader([address], Hangs(None), 4)
    monkeypatch.setenv("HERE", "1")
    monkeypatch.setattr(remade, "AT_END_S", 0.5)
    began = time.monotonic()
    for _ in range(3):
        assert len(list(loader)) == 2
    assert time.monotonic() - began < 10
    assert not any(each._pid for each in remade._looks.values())


class Listed(Sample):
    """Leaves a file for each sample, some time after it was asked for."""

    def __init__(self, folder):
        super().__init__(None)
        self.folder = folder

    def __getitem__(self, index):
        time.sleep(0.2)
        (self.folder / f"{os.getpid()}-{index}").touch()
        return index


def test_what_samples_are_made_of_may_go_when_the_iteration_is_over(feeds, tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    data = Listed(folder)
    loader = feeds.loader([feeds.serve(1, data, 4)], data, 4)
    for _ in loader:
        break
    assert not any(each._pid for each in remade._looks.values())
    wait_for(lambda: not shutil.rmtree(folder, ignore_errors=True) and not folder.exists(), "an empty folder", 10)
    time.sleep(0.5)
    assert not folder.exists()


def test_what_the_other_process_makes_changes_nothing_here(feeds, tmp_path):
    def count(x):
        with open(tmp_path / "made", "a") as file:
            file.write(f"{os.getpid()}\n")
        return x

    data = Sample(count)
    loader = feeds.loader([feeds.serve(1, data, 4)], data, 4)
    torch.manual_seed(5)
    first = torch.rand(1)
    torch.manual_seed(5)
    list(loader)
    looked()
    assert torch.rand(1) == first
    made_by = (tmp_path / "made").read_text().split()
    assert str(os.getpid()) not in made_by
    assert len(made_by) == 8 + 4


@pytest.mark.parametrize(
    ("one", "other", "names"),
    [
        ({"x": torch.ones(3)}, {"x": torch.ones(3) * 1.001}, []),
        ({"x": torch.ones(3)}, {"x": torch.ones(3) * 1.1}, ["['x']"]),
        ([torch.zeros(3, dtype=torch.uint8), 1], [torch.ones(3, dtype=torch.uint8), 1], []),
        ([torch.zeros(3, dtype=torch.uint8), 1], [torch.ones(3, dtype=torch.uint8) * 2, 2], ["[0]", "[1]"]),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), ["the batch"]),
        (torch.tensor([float("nan"), 1.0]), torch.tensor([float("nan"), 1.0 + 1e-5]), []),
        (torch.ones(2, dtype=torch.bfloat16), torch.ones(2), ["the batch"]),
        ((np.ones(2), "a", b"b"), (np.ones(2) * 2, "a", b"c"), ["[0]", "[2]"]),
        ({"x": 1.0, "y": [1]}, {"x": 1.001, "y": [1]}, []),
        ({"x": 1}, {"x": 1, "y": 2}, ["its parts"]),
        (torch.tensor([1 + 1j]), torch.tensor([1 + 2j]), ["the batch"]),
        (torch.empty(0, 3), torch.empty(0, 3), []),
        (torch.zeros(3), torch.zeros(3), []),
    ],
)
def test_batches_differ_where_more_than_rounding_does(one, other, names):
    assert differing(one, other) == names
