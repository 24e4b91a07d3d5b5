"""What a script makes of a shared loader's batches, of which each rank has a part, and then makes its batches with."""

import pytest
import torch
import torch.distributed as dist
from headrace.errors import InputError
from headrace.torch.dataloader import DataLoader
from torch.utils.data import Dataset

from tests.torch.two_ranks import in_two_ranks

MEAN, SCALE = torch.tensor(0.0), 1.0


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


@pytest.mark.parametrize(
    ("make", "name"), [(by_transform, "dataset.transform"), (by_global_tensor, "dataset.global MEAN")]
)
def test_a_later_loader_that_is_made_with_what_each_ranks_part_came_to_is_refused(tmp_path, make, name):
    def body(_):
        train(make(mean_of_its_part()))

    with pytest.raises(InputError, match=rf"rank 1 has made another dataset or loader than rank 0 \(other: {name}"):
        in_two_ranks(body, tmp_path)


@pytest.mark.parametrize(
    ("make", "name"),
    [(by_global_number, "SCALE"), (by_global_of_a_transform, "MEAN")],
)
def test_a_global_that_is_made_of_each_ranks_part_is_told_where_samples_are_made_of_it(tmp_path, make, name):
    def body(_):
        train(make(mean_of_its_part()))

    said = in_two_ranks(body, tmp_path)[1]
    assert f"rank 1 has made of it something else than rank 0 (other: dataset.global {name})" in said


def test_globals_that_ranks_have_of_their_own_since_the_start_are_no_difference(tmp_path):
    def body(rank):
        scale(1.0 + rank)
        for _ in range(2):
            train(DataLoader(Scaled(), 4))

    assert not any("warning" in each for each in in_two_ranks(body, tmp_path))


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
