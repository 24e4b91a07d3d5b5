"""Samplers without a length or without an end, which people write for training by steps."""

import itertools
import random

import numpy as np
import pytest
import torch
from headrace.torch.sampling import samplers
from torch.utils.data import BatchSampler, RandomSampler, Sampler
from torch.utils.data import DataLoader as TorchDataLoader

from tests.torch.draws import BOTH, Draws, indices, plain


class Endless(Sampler):
    """A sampler without an end, which shuffles its dataset again and again. `draw` names the random generator."""

    def __init__(self, size=53, draw="torch"):
        self.size, self.draw = size, draw

    def __iter__(self):
        draws = {"torch": torch.randperm, "numpy": np.random.permutation, "own": np.random.RandomState(0).permutation}
        draws["python"] = lambda size: random.sample(range(size), size)
        while True:
            yield from map(int, draws[self.draw](self.size))


def batches(loader, count):
    taken = iter(loader)
    found = [batch["index"].tolist() for batch in itertools.islice(taken, count)]
    taken.close()
    return found


class Ends(Sampler):
    """A sampler that ends, but has no length."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return (each % 53 for each in range(self.count))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("draw", ["torch", "numpy", "python", "own"])
def test_an_endless_sampler_is_dealt_to_the_ranks_as_it_comes(feeds, draw, workers):
    address = feeds.serve(1, Draws(), 4)
    by_rank = []
    for rank in (0, 1):
        local = feeds.loader([], Draws(), 4, sampler=Endless(draw=draw), rank=rank, world=2, num_workers=workers)
        remote = feeds.loader([address], Draws(), 4, sampler=Endless(draw=draw), rank=rank, world=2)
        by_rank.append(batches(local, 600 if draw == "own" and not workers else 150))
        assert batches(remote, len(by_rank[-1])) == by_rank[-1]
    dealt = list(itertools.chain(*zip(*(itertools.chain(*each) for each in by_rank), strict=True)))
    for first in range(0, len(dealt) - 53, 53):  # each pass has each sample once
        assert sorted(dealt[first : first + 53]) == list(range(53))
    if draw == "own":
        assert dealt == list(itertools.islice(Endless(draw="own"), len(dealt)))


def test_what_the_script_draws_and_what_the_sampler_draws_do_not_touch_each_other(feeds, monkeypatch):
    monkeypatch.setattr(samplers, "_CHUNK", 16)
    quiet = batches(feeds.loader([], Draws(), 4, sampler=Endless()), 100)
    torch.manual_seed(7)
    alone = [torch.rand(1).item() for _ in range(100)]
    torch.manual_seed(7)
    taken = iter(feeds.loader([], Draws(), 4, sampler=Endless()))
    together = [(next(taken)["index"].tolist(), torch.rand(1).item()) for _ in range(100)]
    assert together == list(zip(quiet, alone, strict=True))


@BOTH
def test_training_goes_on_within_an_endless_sampler_on_another_number_of_ranks(feeds, monkeypatch, remote):
    monkeypatch.setattr(samplers, "_CHUNK", 16)
    addresses = [feeds.serve(1, Draws(), 4)] if remote else []
    whole = [index for batch in batches(feeds.loader(addresses, Draws(), 4, sampler=Endless()), 120) for index in batch]
    loader = feeds.loader(addresses, Draws(), 4, sampler=Endless())
    taken = iter(loader)
    for _ in range(70):
        next(taken)
    state = loader.state_dict()
    taken.close()
    for rank in (0, 1):
        resumed = feeds.loader(addresses, Draws(), 4, sampler=Endless(), rank=rank, world=2)
        resumed.load_state_dict(state)
        assert list(itertools.chain(*batches(resumed, 25))) == whole[280 + rank :: 2]


def test_an_endless_sampler_of_batches_and_torchs_own_around_an_endless_sampler(feeds):
    address = feeds.serve(1, Draws(), batch_sampler=BatchSampler(Endless(draw="own"), 4, True))
    plainly = TorchDataLoader(Draws(), batch_sampler=BatchSampler(Endless(draw="own"), 4, True))
    theirs = [each["index"].tolist() for each in itertools.islice(plainly, 60)]
    for addresses in ([], [address]):
        loader = feeds.loader(addresses, Draws(), batch_sampler=BatchSampler(Endless(draw="own"), 4, True))
        assert batches(loader, 60) == theirs
        with pytest.raises(TypeError, match=r"has no len\(\)"):
            len(loader)


@pytest.mark.parametrize("count", [0, 53, 209, 216])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", [500, 5])
def test_a_sampler_that_ends_without_a_word_ends_as_one_with_a_length_does(feeds, monkeypatch, count, workers, size):
    """If `size` is 500, the loader draws all indices when the epoch begins. If `size` is 5, the loader draws at most 75
    at that time, and the others during training."""
    monkeypatch.setattr(samplers, "_CHUNK", 16)
    with_length = list(Ends(count))
    address = feeds.serve(1, Draws(), 4)
    for drop_last, rank in ((False, 0), (True, 1)):
        how = {"rank": rank, "world": 2, "drop_last": drop_last}
        expected = feeds.loader([], Draws(), 4, sampler=with_length, **how)
        loader = feeds.loader([], Draws(), 4, sampler=Ends(count), num_workers=workers, **how)
        monkeypatch.setattr(loader.dataset, "size", size)
        assert [plain(batch) for batch in loader] == [plain(batch) for batch in expected]
        assert loader.state_dict()["epoch"] == expected.state_dict()["epoch"]
        if workers and count:
            remote = feeds.loader([address], Draws(), 4, sampler=Ends(count), **how)
            assert indices(remote) == indices(feeds.loader([], Draws(), 4, sampler=with_length, **how))


def test_a_sampler_that_says_that_it_yields_very_much_is_drawn_as_training_comes_to_it(feeds):
    sampler = RandomSampler(Draws(), replacement=True, num_samples=10**12)
    loader = feeds.loader([], Draws(), 4, sampler=sampler)
    assert len(loader) == 10**12 / 4 and len(batches(loader, 500)) == 500


class SaysMore(Endless):
    """An endless sampler that gives its dataset's length as its own length, as OpenMMLab's samplers do."""

    def __len__(self):
        return self.size


@BOTH
def test_an_endless_sampler_that_has_a_length_has_no_end_as_with_torch(feeds, remote):
    theirs = TorchDataLoader(Draws(), 4, sampler=SaysMore(draw="own"))
    expected = [batch["index"].tolist() for batch in itertools.islice(theirs, 60)]
    loader = feeds.with_server(remote, Draws(), 4, sampler=SaysMore(draw="own"))
    assert batches(loader, 60) == expected and len(loader) == len(theirs) == 14


@pytest.mark.parametrize(
    "wrap", [lambda each: {"sampler": each}, lambda each: {"batch_sampler": BatchSampler(each, 4, True)}]
)
def test_ranks_whose_own_samplers_deal_draw_differently_for_one_position(feeds, wrap):
    def drawn(rank, world, how):
        loader = feeds.loader([], Draws(), rank=rank, world=world, shard_by_rank=False, **how)
        return [each for batch in itertools.islice(loader, 5) for each in batch["numpy"].tolist()]

    first, second = (drawn(rank, 2, wrap(Endless(draw="own"))) for rank in (0, 1))
    assert not set(first) & set(second)
    assert first == drawn(0, 1, wrap(Endless(draw="own")))
    assert drawn(0, 2, {}) == drawn(1, 2, {})
