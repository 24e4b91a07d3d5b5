"""Loaders that a script makes once training has begun: of a dataset that had one before, or of another."""

import dataclasses
import gc

import pytest
import torch
from headrace.errors import InputError

from tests.torch.test_what_people_write import BOTH, Numbers, all_of


class OfShard(Numbers):
    def __getitem__(self, index):
        return self.shard * 100 + index


def test_a_loader_made_later_of_another_dataset_is_not_served_as_one_of_before_but_made_here(feeds, capsys):
    address = feeds.serve(1, OfShard(20, shard=0), 4)
    first = feeds.loader([address], OfShard(20, shard=0), 4)
    assert all_of(first) == list(range(20))
    later = type(first)(OfShard(20, shard=1), 4)
    assert first.made_elsewhere and not later.made_elsewhere
    assert all_of(later) == list(range(100, 120))
    assert "loader 2 of the script was made after the first batch" in capsys.readouterr().out


class InFolder(Numbers):
    def __getitem__(self, index):
        return index if self.root else None


def test_a_loader_made_anew_after_its_dataset_has_changed_is_refused_too(feeds):
    address = feeds.serve(1, InFolder(20, root="/data/a"), 4)
    data = InFolder(20, root="/data/a")
    first = feeds.loader([address], data, 4)
    assert all_of(first) == all_of(type(first)(data, 4)) == list(range(20))
    data.root = "/data/b"  # on another host it may be called so
    with pytest.raises(InputError, match=r"has changed since the first batch \(root\)"):
        all_of(type(first)(data, 4))


class Collating(Numbers):
    def collate(self, samples):
        return torch.tensor(samples)


@dataclasses.dataclass
class Collator:
    pad: int = 0

    def __call__(self, samples):
        return torch.tensor(samples) + self.pad


@pytest.mark.parametrize("collate_of", [lambda data: data.collate, lambda _: Collator()])
def test_a_loader_made_anew_for_each_epoch_may_have_its_collate_function_made_anew_too(feeds, collate_of):
    address = feeds.serve(1, Collating(20), 4, collate_fn=collate_of(Collating(20)))
    data = Collating(20)
    loader = feeds.loader([address], data, 4, collate_fn=collate_of(data))
    for _ in range(3):
        assert all_of(loader) == list(range(20)) and loader.made_elsewhere
        loader = type(loader)(data, 4, collate_fn=collate_of(data))


class Moving(Numbers):
    """Is told epochs, and keeps what it has made."""

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitem__(self, index):
        self.cache[index] = index
        return index


@dataclasses.dataclass
class Weighted:
    weights: torch.Tensor

    def __call__(self, samples):
        return torch.tensor(samples)


@BOTH
def test_loaders_made_anew_go_on_in_another_order_though_the_dataset_has_moved_on(feeds, remote):
    collate_fn = Weighted(torch.ones(3))
    made = {"shuffle": True, "collate_fn": collate_fn}
    addresses = [feeds.serve(1, Moving(20, epoch=0, cache={}), 4, **made)] if remote else []
    data, orders = Moving(20, epoch=0, cache={}), set()
    loader = feeds.loader(addresses, data, 4, **made)
    for epoch in range(3):
        data.set_epoch(epoch)
        orders.add(tuple(all_of(loader)))
        assert loader.made_elsewhere == remote
        assert data[3] == 3  # a look at a sample
        loader = type(loader)(data, 4, **made)
    assert len(orders) == 3
    other = type(loader)(data, 4, shuffle=True, collate_fn=Weighted(torch.zeros(3)))  # compares as it likes
    assert sorted(all_of(other)) == list(range(20))


def test_loaders_made_late_of_two_datasets_draw_differently(feeds):
    first = feeds.loader([], Numbers(20), 4, shuffle=True)
    all_of(first)
    late = [type(first)(Numbers(40, kind=kind), 4, shuffle=True) for kind in "ab"]
    assert all_of(late[0]) != all_of(late[1])


def test_what_servers_had_of_a_loader_that_was_thrown_away_is_not_taken_for_what_there_is_now(feeds):
    address = feeds.serve(1, Numbers(20), 4)
    data, others = OfShard(20, shard=0, root="/a"), Numbers(20)
    feeds.loader([address], data, 4)
    loader = feeds.loader([address], others, 4)
    loader.set_epoch(0)
    gc.collect()
    all_of(loader)
    assert not type(loader)(data, 4).made_elsewhere


@BOTH
def test_a_loader_that_is_made_anew_for_each_epoch_goes_on_in_another_order(feeds, remote):
    addresses = [feeds.serve(1, Numbers(20), 4, shuffle=True)] if remote else []

    def orders():
        data = Numbers(20)
        one = feeds.loader(addresses, data, 4, shuffle=True)
        # As a second one of the same process, which the fixture would take for another rank's.
        begun = all_of(one)
        return begun, all_of(type(one)(data, 4, shuffle=True))

    first, second = orders()
    assert first != second and sorted(first) == sorted(second)
    assert orders() == (first, second), "and always the same"
