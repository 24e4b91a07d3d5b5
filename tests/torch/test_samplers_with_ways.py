"""Samplers that move their epoch, hold generators, refill a buffer, deal themselves, or that a script changes."""

import itertools

import numpy as np
import pytest
import torch
from headrace.errors import InputError
from headrace.torch import drawn, sampler_changes
from headrace.torch.dataloader import DataLoader
from torch.utils.data import BatchSampler, RandomSampler, Sampler, SequentialSampler

from tests.torch.draws import Draws
from tests.torch.endless import Endless, batches


class Moves(Endless):
    """Goes on to the next epoch by itself, and shuffles by it, as many do for torchrun's restarts."""

    def __init__(self, **options):
        super().__init__(**options)
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def all(self):
        while True:
            yield from torch.randperm(self.size, generator=torch.Generator().manual_seed(self.epoch)).tolist()
            self.set_epoch(self.epoch + 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_that_moves_its_own_epoch_does_not_move_the_loaders(feeds, monkeypatch, workers):
    monkeypatch.setattr(drawn, "_CHUNK", 16)
    loader = feeds.loader([], Draws(), 4, sampler=Moves(), num_workers=workers)
    for epoch in range(3):
        expected = list(itertools.islice(itertools.chain(*(shuffled(epoch + each) for each in range(8))), 400))
        assert list(itertools.chain(*batches(loader, 100))) == expected
        assert loader.state_dict()["epoch"] == epoch
    loader.set_epoch(7)
    assert batches(loader, 1) == [shuffled(7)[:4]]


def shuffled(epoch):
    return torch.randperm(53, generator=torch.Generator().manual_seed(epoch)).tolist()


def test_two_iterations_over_a_sampler_with_a_generator_do_not_disturb_each_other(feeds, monkeypatch):
    monkeypatch.setattr(drawn, "_CHUNK", 16)
    monkeypatch.setattr(drawn, "MOST_AT_ONCE", 1000)
    mine = torch.Generator().manual_seed(5)
    loader = feeds.loader(
        [], Draws(), 4, sampler=RandomSampler(Draws(), replacement=True, num_samples=4000, generator=mine)
    )
    epochs = [batches(loader, 300), batches(loader, 300)]
    assert mine.get_state().equal(torch.Generator().manual_seed(5).get_state())
    loader.set_epoch(0)
    first = iter(loader)
    begun = [next(first)["index"].tolist() for _ in range(5)]
    assert batches(loader, 300) == epochs[1]
    assert begun + [next(first)["index"].tolist() for _ in range(295)] == epochs[0] != epochs[1]


def test_what_a_long_sampler_does_after_its_last_sample_is_done(feeds, monkeypatch):
    class Counts(Sampler):
        passes = 0

        def __len__(self):
            return 5000

        def __iter__(self):
            yield from (each % 53 for each in range(5000))
            self.passes += 1

    monkeypatch.setattr(drawn, "MOST_AT_ONCE", 1000)
    sampler = Counts()
    loader = feeds.loader([], Draws(), 100, sampler=sampler)
    assert [sum(len(batch["index"]) for batch in loader) for _ in range(2)] == [5000, 5000]
    assert sampler.passes == 2


@pytest.mark.parametrize("buffer", [np.zeros(4, np.int64), [0] * 4], ids=["an array", "a list"])
@pytest.mark.parametrize("passes", [1, 1000], ids=["with an end", "endless"])
def test_a_batch_sampler_may_fill_one_buffer_again_and_again(feeds, buffer, passes):
    class Fills:
        def __iter__(self):
            for first in itertools.chain(*[range(0, 52, 4)] * passes):
                buffer[:] = range(first, first + 4)
                yield buffer

    loader = feeds.loader([], Draws(), batch_sampler=Fills())
    assert batches(loader, 26) == [list(range(first, first + 4)) for first in range(0, 52, 4)] * min(passes, 2)


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
    for evaluated in ({}, wrap(SequentialSampler(Draws()))):
        assert drawn(0, 2, evaluated) == drawn(1, 2, evaluated)


class Repeats(DataLoader):
    """As timm's MultiEpochsDataLoader and YOLO's InfiniteDataLoader."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        object.__setattr__(self, "batch_sampler", Again(self.batch_sampler))

    def __len__(self):
        return len(self.batch_sampler.sampler)


class Again:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


def test_a_loader_that_puts_another_sampler_around_its_own_is_refused_in_words(feeds):
    feeds.loader([], Draws(), 4)
    loader = Repeats(Draws(), 4)
    assert len(loader) == 14
    with pytest.raises(InputError, match="as InfiniteDataLoader and MultiEpochsDataLoader do"):
        next(iter(loader))


class Curriculum(Sampler):
    """The script widens what it draws from, and notes on it what it does."""

    def __init__(self):
        self.weights, self.drawn, self.noted = torch.tensor([1.0] * 10 + [0.0] * 43), 0, 0

    def __iter__(self):
        noted = self.drawn
        while True:
            self.drawn += noted + 1
            yield int(torch.multinomial(self.weights, 1))

    def state_dict(self):
        return {"noted": self.noted}


@pytest.mark.parametrize("how", ["in place", "anew", "not", "looked at"])
def test_a_script_that_changes_a_sampler_that_draws_ahead_is_told(feeds, monkeypatch, capsys, how):
    monkeypatch.setattr(sampler_changes, "_told", set())
    sampler = Curriculum()
    taken = iter(feeds.loader([], Draws(), 4, sampler=sampler))
    another = DataLoader(Draws(), 4, sampler=sampler)
    for step in range(500):
        assert len(next(taken)["index"]) == 4
        sampler.noted += 1
        if step == 100 and how == "in place":
            sampler.weights[10:] = 1.0
        elif step == 100 and how == "anew":
            sampler.weights = torch.ones(53)
        elif step == 100 and how == "looked at":
            next(iter(another))
    said = [line for line in capsys.readouterr().out.splitlines() if "warning" in line]
    changes = how in ("in place", "anew")
    assert len(said) == changes and all("changed Curriculum.weights, and" in line for line in said)


class OfSides(Draws):
    side, unset, opened = 0, float("nan"), -1

    def __init__(self):
        super().__init__()
        self.side, self.unset = 0, float("nan")

    def length(self, index):
        self.opened = index
        return index + self.opened

    def __getitem__(self, index):
        self.length(index[0] if isinstance(index, tuple) else index)
        return torch.full((index[1] if isinstance(index, tuple) else self.side,), self.unset)


class OfSizes(BatchSampler):
    """Batches of images that have one size in each batch."""

    def __init__(self, data, set_for):
        super().__init__(SequentialSampler(data), 4, False)
        self.data, self.set_for = data, set_for

    def __iter__(self):
        for number, batch in enumerate(super().__iter__()):
            self.data.length(number)
            self.data.served = number
            if self.set_for == "each batch" or (self.set_for == "the epoch" and not number):
                self.data.side = 1 + number
            yield [(index, 1 + number) for index in batch] if self.set_for == "nothing" else batch


def test_a_batch_sampler_that_sets_something_of_its_dataset_with_each_batch_is_refused(feeds):
    data = OfSides()
    with pytest.raises(InputError, match="OfSizes sets side of the dataset while it draws, and batches are made later"):
        list(feeds.loader([], data, batch_sampler=OfSizes(data, "each batch")))
    for set_for in ("the epoch", "nothing"):
        made = list(feeds.loader([], data, batch_sampler=OfSizes(data, set_for)))
        assert [each.shape[1] for each in made] == [1 if set_for == "the epoch" else n for n in range(1, 15)]
