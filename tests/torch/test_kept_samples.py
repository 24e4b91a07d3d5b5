"""What a dataset keeps of the samples that a rank has made, of which each rank has others, is no difference."""

import random

import pytest
import torch
from headrace.torch.dataloader import DataLoader
from torch.utils.data import Subset

from tests.torch.test_shared_statistics import Numbers, Shift, mean_of_its_part, train
from tests.torch.two_ranks import in_two_ranks

CACHE = {}


class Kept(Numbers):
    def __init__(self):
        self.kept = {}

    def __getitem__(self, index):
        if index not in self.kept:
            self.kept[index] = float(index)
        return torch.tensor(self.kept[index])


class Store:
    def __init__(self):
        self.kept = {}

    def put(self, index, value):
        self.kept[index] = value


class KeptElsewhere(Numbers):
    def __init__(self):
        self.store = Store()

    def __getitem__(self, index):
        self.store.put(index, index)
        return torch.tensor(float(self.store.kept[index]))


class KeptByAGlobal(Numbers):
    def __getitem__(self, index):
        if index not in CACHE:
            CACHE[index] = float(index)
        return torch.tensor(CACHE[index])


class Counting(Shift):
    calls = 0

    def __call__(self, value):
        self.calls += 1
        self.last = value
        return value


class Transformed(Numbers):
    def __init__(self):
        self.transform = Counting(0)


class Drawing(Numbers):
    def __init__(self):
        self.rng = random.Random(0)

    def __getitem__(self, index):
        return torch.tensor(index + self.rng.random())


BUFFER = torch.zeros(1)


class WithABuffer(Numbers):
    def __getitem__(self, index):
        return torch.mul(torch.tensor([float(index)]), 2, out=BUFFER).clone()


def remember(kept, index, value):
    kept[index] = value
    return value


class KeptByAnother(Numbers):
    def __getitem__(self, index):
        return remember(CACHE, index, torch.tensor(float(index)))


class KeptOutside(Numbers):
    def __init__(self):
        self.within, self.kept = Kept(), {}

    def __getitem__(self, index):
        return self.kept.setdefault(index, self.within[index])


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        Kept,
        KeptElsewhere,
        KeptByAGlobal,
        Transformed,
        Drawing,
        KeptOutside,
        WithABuffer,
        lambda: Subset(Kept(), list(range(40))),
    ],
)
def test_what_a_dataset_keeps_of_each_ranks_samples_is_no_difference(tmp_path, make, late):
    def body(_):
        data = [] if late else [make()]
        loaders = [DataLoader(each, 4) for each in data]
        mean_of_its_part()
        data = data or [make()]
        for _ in range(3):
            for each in loaders:
                train(each)
            train(DataLoader(data[0], 4, shuffle=True))
            if isinstance(data[0], (KeptByAGlobal, KeptByAnother)):
                data = [make()]

    assert not any("warning" in each for each in in_two_ranks(body, tmp_path))
