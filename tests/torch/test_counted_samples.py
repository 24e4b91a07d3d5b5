"""Samples that are made of a number which making samples adds to are others in each process: a warning says so."""

import pytest
from headrace.torch.dataset_writes import counted_by_samples
from torch.utils.data import IterableDataset

from tests.torch.test_what_people_write import Numbers, all_of


class Iterating(IterableDataset):
    """Counts anew in each pass, as its iterator."""

    def __iter__(self):
        self.at, self.buffer = 0, []
        return self

    def __next__(self):
        if self.at >= 8:
            raise StopIteration
        self.at += 1
        self.buffer += [self.at]
        return self.at + 0 * len(self.buffer)


class Bounded(Numbers):
    def __getitem__(self, index):
        self.hits += 1
        if self.hits > 1000:
            self.cache.clear()
            self.hits = 0
        return index


def test_what_begins_anew_is_no_number_that_samples_are_made_of():
    assert counted_by_samples(Iterating) == counted_by_samples(Bounded) == frozenset()
    assert counted_by_samples(NextItem) == {"position"}


class NextItem(Numbers):
    def __getitem__(self, index):
        self.calls += 1
        if self.calls % 100 == 0:
            print("a hundred samples")
        self.position += 1
        return self.position


class Ramp:
    def __init__(self):
        self.calls = 0

    def __call__(self, value):
        self.calls += 1
        return value * min(self.calls / 100, 1)


@pytest.mark.parametrize("remote", [True, False])
def test_samples_of_what_a_process_counts_are_warned_of(feeds, capfd, remote):
    for make, told in (
        (lambda: NextItem(8, calls=0, position=-1), "warning: NextItem adds to position while it makes samples"),
        (lambda: Numbers(8, transform=Ramp()), "warning: Ramp adds to calls while it makes samples"),
    ):
        loader = feeds.loader([feeds.serve(1, make(), 4)] if remote else [], make(), 4, num_workers=0 if remote else 2)
        for _ in range(2):
            list(loader)
        assert capfd.readouterr().out.count(told) == 1
    alone = feeds.loader([], NextItem(8, calls=0, position=-1), 4)
    assert all_of(alone) == list(range(8)) and "warning" not in capfd.readouterr().out


class Named(Numbers):
    """Its samples are made by a method that has a global's name."""

    def __getitem__(self, index):
        return self.batches_of_all(index)

    def batches_of_all(self, index):
        return index


batches_of_all = None


def test_a_loader_that_a_global_of_a_methods_name_holds_is_no_part_of_the_dataset(feeds, capfd, monkeypatch):
    """Names are read as globals too; and headrace itself lies beside the script, as its own code does."""
    loader = feeds.loader([], Named(8), 4, num_workers=2)
    monkeypatch.setitem(globals(), "batches_of_all", loader)
    assert all_of(loader) == list(range(8))
    assert "warning:" not in capfd.readouterr().out
