"""What a script makes of a shared loader's batches, of which each rank has a part, and then makes its batches with."""

import random

import pytest
import torch
import torch.distributed as dist
from headrace.errors import InputError
from headrace.torch.loader import DataLoader
from torch.utils.data import Dataset, Subset

from tests.torch.two_ranks import in_two_ranks

MEAN, SCALE, VOCABULARY, CACHE = torch.tensor(0.0), 1.0, {}, {}


class Numbers(Dataset):
    transform = None

    def __len__(self):
        return 40

    def __getitem__(self, index):
        value = torch.tensor(float(index))
        return self.transform(value) if self.transform else value


class Shifted(Numbers):
    def __getitem__(self, index):
        return torch.tensor(float(index)) - MEAN


class Scaled(Numbers):
    def __getitem__(self, index):
        return scaled(torch.tensor(float(index)))


class Shift:
    def __init__(self, by):
        self.by = by

    def __call__(self, value):
        return value - self.by


def scaled(value):
    return value * SCALE


def shifted(value):
    return value - MEAN


def looked_up(samples):
    return torch.tensor([VOCABULARY.get(float(each), 0) for each in samples])


def train(loader):
    for batch in loader:
        dist.all_reduce(batch)


def mean_of_its_part():
    return float(torch.cat(list(DataLoader(Numbers(), 4))).mean())


def shift(mean):
    global MEAN
    MEAN = torch.tensor(mean)


def scale(mean):
    global SCALE
    SCALE = mean


def by_transform(mean):
    data = Numbers()
    data.transform = Shift(mean)
    return DataLoader(data, 4)


def by_global_tensor(mean):
    shift(mean)
    return DataLoader(Shifted(), 4)


def by_global_number(mean):
    scale(mean)
    return DataLoader(Scaled(), 4)


def by_global_of_a_transform(mean):
    shift(mean)
    data = Numbers()
    data.transform = shifted
    return DataLoader(data, 4)


def by_vocabulary(_):
    seen = torch.cat(list(DataLoader(Numbers(), 4, seed=5))).tolist()
    VOCABULARY.update({each: number for number, each in enumerate(seen)})
    return DataLoader(Numbers(), 4, collate_fn=looked_up)


@pytest.mark.parametrize(
    ("make", "names"),
    [(by_transform, "dataset.transform"), (by_global_tensor, "dataset.global MEAN"),
     (by_global_number, "dataset.global SCALE"), (by_global_of_a_transform, "dataset.global MEAN"),
     (by_vocabulary, "collate_fn.global VOCABULARY")],
)  # fmt: skip
def test_a_later_loader_that_is_made_with_what_each_ranks_part_came_to_is_refused(tmp_path, make, names):
    def body(_):
        train(make(mean_of_its_part()))

    with pytest.raises(InputError, match=rf"rank 1 has made another dataset or loader than rank 0 \(other: {names}"):
        in_two_ranks(body, tmp_path)


def set_transform(data, mean):
    data.transform = Shift(mean)


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("of_class", [Numbers, Shifted, Scaled])
def test_a_dataset_that_each_rank_changes_in_its_own_way_is_told(tmp_path, of_class, anew):
    def body(_):
        data = of_class()
        loader = DataLoader(data, 4)
        mean = float(torch.cat(list(loader)).mean())
        {Numbers: lambda: set_transform(data, mean), Shifted: lambda: shift(mean), Scaled: lambda: scale(mean)}[
            of_class
        ]()
        for _ in range(2):
            loader = DataLoader(data, 4) if anew else loader
            train(loader)

    said = in_two_ranks(body, tmp_path)[1]
    name = {Numbers: "dataset.transform", Shifted: "dataset.global MEAN", Scaled: "dataset.global SCALE"}[of_class]
    assert f"since the first batch, rank 1 has made of it something else than rank 0 (other: {name}" in said
    assert said.count("warning") == (2 if anew else 1)


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


class KeptOutside(Numbers):
    def __init__(self):
        self.within, self.kept = Kept(), {}

    def __getitem__(self, index):
        return self.kept.setdefault(index, self.within[index])


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    "make",
    [Kept, KeptElsewhere, KeptByAGlobal, Transformed, Drawing, KeptOutside, lambda: Subset(Kept(), list(range(40)))],
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

    assert not any("warning" in each for each in in_two_ranks(body, tmp_path))
