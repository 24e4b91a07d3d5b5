"""A sample's random draws follow from seed, epoch and position, also if its dataset or transforms hold generators."""

import functools
import random

import numpy as np
import pytest
import torch
from headrace.torch.fetch.rng import generators_of, sample_seed, set_epoch
from torch.utils.data import ConcatDataset, Subset

from tests.torch.draws import BOTH, Draws, Numbers, all_of


def test_seeds_of_samples_are_apart():
    seeds = {sample_seed(seed, epoch, place) for seed in range(4) for epoch in range(4) for place in range(500)}
    assert len(seeds) == 4 * 4 * 500
    assert torch.Generator().manual_seed(max(seeds))


@pytest.mark.parametrize("wrap", [lambda data: data, lambda data: Subset(data, range(53))], ids=["itself", "a subset"])
def test_a_samples_draws_do_not_depend_on_the_number_of_ranks(feeds, wrap):
    def draws(world):
        found = {}
        for rank in range(world):
            for batch in feeds.loader([], wrap(Draws()), 4, shuffle=True, rank=rank, world=world):
                found |= dict(zip(batch["index"].tolist(), batch["numpy"].tolist(), strict=True))
        return found

    assert draws(1) == draws(2) == draws(3)


class Noise:
    """A transform that holds its own random generators, as transforms of libraries do."""

    def __init__(self, *generators):
        self.generators = list(generators)

    def __call__(self, value):
        return value + sum(drawn_from(each) for each in self.generators)


def drawn_from(generator):
    return float(torch.rand(1, generator=generator)) if isinstance(generator, torch.Generator) else generator.random()


class Noisy(Numbers):
    def __getitem__(self, index):
        return self.transform(0.0)


def of_all_kinds():
    return Noise(np.random.default_rng(0), random.Random(0), torch.Generator(), np.random.RandomState(0))


NOISE = Noise(np.random.default_rng(0))


def epochs_everywhere(feeds, make, **rank):
    """Return the samples of three epochs. Assert that servers, this process and workers make the same samples."""
    servers, found = [feeds.serve(2, make(), 4) for _ in range(2)], []
    for addresses, workers in (servers, 0), ([], 0), ([], 2):
        loader = feeds.loader(addresses, make(), 4, num_workers=workers, **rank)
        found.append([all_of(loader) for _ in range(3)])
    assert found == found[:1] * 3
    return found[0]


def test_each_sample_has_draws_of_its_own_on_all_ranks_whoever_makes_it(feeds):
    drawn = []
    for rank in (0, 1):
        drawn += epochs_everywhere(feeds, lambda: Noisy(40, transform=of_all_kinds()), rank=rank, world=2)
    assert len({each for epoch in drawn for each in epoch}) == 120


@pytest.mark.parametrize(
    "transform",
    [NOISE, functools.partial(NOISE), [NOISE], {"train": NOISE}, NOISE.__call__, NOISE.generators[0].random],
)
def test_generators_are_found_however_attributes_lead_to_them(transform):
    assert list(generators_of(Noisy(2, transform=transform)).values()) == NOISE.generators


def test_generators_are_found_behind_many_labels_and_what_cannot_be_seeded_is_left():
    by_class = {number: [f"{number}/{image}" for image in range(200)] for number in range(100)}
    other = np.random.RandomState(np.random.PCG64(0))
    data = Noisy(4, by_class=by_class, boxes=[{"box": [1, 2, 3, 4]}] * 5_000, other=other, transform=[NOISE])
    assert list(generators_of(data).values()) == NOISE.generators


def test_what_the_script_draws_from_a_generator_that_its_dataset_holds_is_as_without_a_loader(feeds):
    shared = np.random.default_rng(5)
    assert len(all_of(feeds.loader([], Noisy(8, transform=Noise(shared)), 4))) == 8
    assert shared.random() == np.random.default_rng(5).random()


class Lazily(Numbers):
    """A dataset that creates generators when it needs them: at its first sample, and for each epoch."""

    def __init__(self, size):
        super().__init__(size, rng=None, of_epoch=None, noise=Noise(random.Random(0)))

    def set_epoch(self, epoch):
        self.of_epoch = np.random.default_rng(epoch)

    def __getitem__(self, index):
        self.rng = self.rng or np.random.default_rng(0)
        return self.noise(self.rng.random() + self.of_epoch.random())


def test_generators_that_are_made_late_are_seeded_from_the_first_sample_on(feeds):
    assert len({each for epoch in epochs_everywhere(feeds, lambda: Lazily(40)) for each in epoch}) == 120


class Reordered(Numbers):
    """A dataset that draws a new order in `set_epoch`."""

    def __init__(self, size):
        super().__init__(size, rng=np.random.default_rng(0), order=np.arange(size))

    def set_epoch(self, epoch):
        self.order = self.rng.permutation(torch.randperm(len(self.order)))

    def __getitem__(self, index):
        return int(self.order[index]) + 0 * int(self.rng.integers(3))


def test_what_set_epoch_draws_is_the_same_in_all_processes(feeds):
    epochs = epochs_everywhere(feeds, lambda: Reordered(32))
    assert all(sorted(each) == list(range(32)) for each in epochs)
    assert len({tuple(each) for each in epochs}) == 3


class Staged(Numbers):
    """A dataset that computes its stage from the epoch, as in curriculum learning."""

    stage = -1

    def set_epoch(self, epoch):
        self.stage = epoch

    def __getitem__(self, index):
        return self.stage


@BOTH
@pytest.mark.parametrize(
    "make",
    [lambda: Staged(300), lambda: ConcatDataset([Staged(1) for _ in range(300)])],
    ids=["itself", "many"],
)
def test_a_datasets_set_epoch_is_called_wherever_samples_are_made(feeds, remote, make):
    loader = feeds.with_server(remote, make(), 50, processes=2)
    assert [set(all_of(loader)) for _ in range(2)] == [{0}, {1}]
    loader.set_epoch(11)
    assert set(all_of(loader)) == {11}


def test_each_loader_of_a_dataset_has_it_at_its_own_epoch(feeds):
    data = Staged(20)
    train = feeds.loader([], Subset(data, range(20)), 4)
    other = type(train)(Subset(data, range(8)), 4)
    train.set_epoch(3)
    stages = []
    for number, batch in enumerate(train):
        stages += batch.tolist()
        if number == 1:
            assert set(all_of(other)) == {0}
    assert set(stages) == {3}


def test_a_dataset_with_the_id_of_one_that_is_gone_gets_its_set_epoch():
    ids = set()
    for _ in range(50):
        data = Staged(4)
        ids.add(id(data))
        assert set_epoch(data, 0, 0) and data.stage == 0
        assert not set_epoch(data, 0, 0), "set_epoch was called twice for one epoch"
        del data
    assert len(ids) < 50, "no id came twice"
