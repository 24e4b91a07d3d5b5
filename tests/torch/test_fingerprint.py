"""Datasets that are made of the same things are the same to a feed server; others are not."""

import collections
import copy
import datetime
import functools
import multiprocessing
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from headrace.torch.changed import changes
from headrace.torch.fingerprint import fingerprint
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, random_split


class Files(Dataset):
    def __init__(self, names, root="/data", transform=None):
        self.samples, self.root, self.transform = [(name, 1) for name in names], root, transform


class Table(Dataset):
    def __init__(self, columns):
        self.columns = columns


class Foreign:
    """As the datasets of other libraries are."""

    def __init__(self, rows):
        self.rows = rows

    def __getitem__(self, index):
        return self.rows[index]

    def __len__(self):
        return len(self.rows)


class Words:
    def __init__(self, words):
        self.numbers = {word: number for number, word in enumerate(words)}


class Shy:
    def __getattr__(self, name):
        raise RuntimeError(name)

    def __len__(self):
        raise RuntimeError("no length")


def holding(values):
    return lambda: values


def circle():
    table = Table([])
    table.columns = [table]
    return table


def split(seed):
    return random_split(range(100), [80, 20], torch.Generator().manual_seed(seed))[0]


SAME = {
    "tensors": lambda: TensorDataset(torch.arange(10), torch.ones(10, 3, dtype=torch.bfloat16)),
    "split": lambda: split(1),
    "joined": lambda: ConcatDataset([split(1), split(2)]),
    "files in another folder": iter([Files(["a", "b"]), Files(["a", "b"], "/elsewhere")]).__next__,
    "a transform": lambda: Files(["a"], transform=lambda x: x),
    "long": lambda: Files(str(number) for number in range(100_000)),
    "none of torch's": lambda: [1, 2, 3],
    "a dict": lambda: Table({"a": [1, 2], "b": {"c": 3}}),
    "an object of the script": lambda: Table(Words(["a", "b"])),
    "a function that holds another": lambda: Table(functools.partial(print, holding([1, 2]))),
    "paths in another folder": iter(
        [Table([Path("/a/x/1"), Path("/a/x/2")]), Table([Path("/b/1"), Path("/b/2")])]
    ).__next__,
    "a generator of its own": lambda: Table(np.random.default_rng()),
    "a lock, a file, a thread": lambda: Table([threading.Lock(), open(__file__), threading.Thread()]),  # noqa: SIM115
    "what raises when it is looked at": lambda: Table(Shy()),
    "moments": lambda: Table([datetime.datetime(2026, 1, 1), np.datetime64("NaT"), float("nan")]),
    "what another process holds": lambda: Table(multiprocessing.Manager().dict()),
    "no text": lambda: Table(["\ud800"]),
    "itself": lambda: circle(),
    "not contiguous": lambda: TensorDataset(torch.arange(12).view(3, 4).t(), torch.zeros(4)),
}


@pytest.mark.parametrize("make", SAME.values(), ids=SAME)
def test_the_same_dataset_has_the_same_fingerprint(make):
    assert fingerprint(make()) == fingerprint(make())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (split(1), split(2)), (Subset(range(9), [1, 2]), Subset(range(9), [2, 1])),
        (TensorDataset(torch.zeros(5)), TensorDataset(torch.ones(5))),
        (Files(["a", "b"]), Files(["b", "a"])), (Files(["a"]), Files(["a", "b"])), ([1, 2], [2, 1]),
        (Table({"a": [1, 2]}), Table({"a": [2, 1]})), (Table({1, 2}), Table({1, 3})),
        (Table(Words(["a", "b"])), Table(Words(["b", "a"]))), (Table([Words(["a"])]), Table([Words(["b"])])),
        (Table("train"), Table("test")), (Table(b"abc"), Table(b"abd")),
        (Table([Path("/a/1"), Path("/a/2")]), Table([Path("/a/2"), Path("/a/1")])),
        (Table(np.array(["a", None], object)), Table(np.array(["b", None], object))),
        (Table(torch.arange(12).view(3, 4).t()), Table(torch.arange(1, 13).view(3, 4).t())),
        (Table(holding([1])), Table(holding([2]))),
        (Table(functools.partial(int, 1)), Table(functools.partial(int, 2))),
        (Table(lambda x: x + 1), Table(lambda x: x + 2)),
        (Subset(Foreign([1, 2]), [0]), Subset(Foreign([2, 1]), [0])),
        (ConcatDataset([split(1), split(2)]), ConcatDataset([split(2), split(1)])), (np.arange(4), np.arange(1, 5)),
    ],
)  # fmt: skip
def test_another_dataset_has_another(one, other):
    assert fingerprint(one) != fingerprint(other)


def test_lists_of_lists_take_no_longer_than_their_first_values():
    deep = Table([[list(range(1000)) for _ in range(10)] for _ in range(1000)])
    began = time.process_time()
    fingerprint(deep)
    assert time.process_time() - began < 2


class OfGlobals(Dataset):
    transform = None

    def __getitem__(self, index):
        return ROWS[index]


ROWS = [1, 2, 3]


def test_what_a_class_gives_and_globals_that_samples_are_made_of_count(monkeypatch):
    data = OfGlobals()
    before = fingerprint(data)
    data.transform = float
    assert changes(before, fingerprint(data)) == ["transform"]
    monkeypatch.setitem(globals(), "ROWS", [1, 3])
    assert changes(before, fingerprint(data)) == ["global ROWS", "transform"]


def test_a_collate_function_of_a_trainer_is_not_all_that_the_trainer_holds():
    class Trainer:
        def __init__(self, rank):
            self.rank, self.model = rank, torch.nn.Linear(3, 3)

        def collate(self, samples):
            return samples

    assert fingerprint(Trainer(0).collate) == fingerprint(Trainer(1).collate)


def test_what_differs_between_hosts_and_ranks_of_one_job_counts_for_nothing(monkeypatch):
    def of(device, folder, host):
        monkeypatch.setenv("SM_CURRENT_HOST", host)
        return fingerprint(Table({"device": device, "samples": [(f"{folder}/cat/1.jpg", 1)], "host": host}))

    assert of("cuda:1", "/a/b", "algo-1") == of("cpu", "/c", "algo-2")
    assert of("cpu", "/a", "algo-1") != fingerprint(Table({"device": "cpu", "samples": [("/a/dog/1.jpg", 1)]}))


def test_of_a_path_a_number_that_may_be_a_ranks_counts_and_its_folder_does_not():
    def of(path):
        return fingerprint(Table(path))

    for first, second in ("train_0.h5", "train_1.h5"), ("rank0", "rank1"), ("part-00.csv", "part-01.csv"):
        assert of(f"/a/{first}") != of(f"/a/{second}")
        assert of(f"/a/1/{first}") == of(Path(f"/b/2/{first}"))
    assert of("/scratch/cache_0") == of("/scratch/cache_1") and of("/tmp/tmp_0_a.csv") == of("/tmp/tmp_1_b.csv")
    assert of("/tmp/tmpa1b2c_0x") == of("/tmp/tmpz9_7k") == of("/data/images-256") == of("/tmp/run-20261126-082223")


def test_the_attributes_that_differ_are_named():
    data = Table([1])
    before = fingerprint(data)
    data.columns, data.opened = [2], threading.Lock()
    assert changes(before, fingerprint(data)) == ["columns"]


def test_a_cache_that_a_library_keeps_for_its_process_tells_nothing():
    streamed = type("Streamed", (Dataset,), {"__module__": "torch.utils.data"})
    one, other = streamed(), streamed()
    one._Streamed__files_cache, other._Streamed__files_cache = {(1, 2): 0}, {(3, 4): 0}
    assert fingerprint(one) == fingerprint(other)
    other.rows = [2]
    assert fingerprint(one) != fingerprint(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (collections.deque([1, 2]), collections.deque([2, 1])),
        ("cats/1/2.png", "cats/2/2.png"),
        (torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)),
    ],
)
def test_queues_relative_paths_and_models_tell_datasets_apart(one, other):
    assert fingerprint(Table(one)) != fingerprint(Table(other))
    assert fingerprint(Table(one)) == fingerprint(Table(copy.deepcopy(one)))
