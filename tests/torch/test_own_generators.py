"""Generators that a dataset or its transforms hold draw other numbers for each sample, and the same ones everywhere."""

import functools
import random

import numpy as np
import pytest
import torch
from headrace.torch.own_generators import generators_held

from tests.torch import draws
from tests.torch.test_what_people_write import Numbers, all_of


class Noise:
    """As a library's transform is: it holds generators of its own."""

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


def around(noise):
    return lambda value: noise(value)


def of_a_global(value):
    return NOISE(value)


def test_each_sample_has_draws_of_its_own_on_all_ranks_whoever_makes_it(feeds):
    drawn = []
    for rank in (0, 1):
        remote = [feeds.serve(2, Noisy(40, transform=of_all_kinds()), 4) for _ in range(2)]
        of_servers = feeds.loader(remote, Noisy(40, transform=of_all_kinds()), 4, rank=rank, world=2)
        epochs = [all_of(of_servers) for _ in range(2)]
        for workers in (0, 2):
            local = feeds.loader([], Noisy(40, transform=of_all_kinds()), 4, rank=rank, world=2, num_workers=workers)
            assert [all_of(local) for _ in range(2)] == epochs
        drawn += epochs[0] + epochs[1]
    assert len(set(drawn)) == 80


@pytest.mark.parametrize(
    "transform",
    [NOISE, around(NOISE), of_a_global, functools.partial(NOISE), [NOISE], {"train": NOISE}, NOISE.__call__],
)
def test_generators_are_found_however_they_are_held(transform):
    assert list(generators_held(Noisy(2, transform=transform)).values()) == NOISE.generators


class Jitter:
    rng = np.random.default_rng(0)

    @staticmethod
    def of(value):
        return value + Jitter.rng.random()


class Jittered(Numbers):
    def __getitem__(self, index):
        return Jitter.of(0.0)


def test_generators_are_found_behind_a_method_of_theirs_and_in_a_static_method():
    own = random.Random(0)
    assert list(generators_held(Noisy(2, transform=own.random)).values()) == [own]
    assert list(generators_held(Jittered(2)).values()) == [Jitter.rng]


class OfTheClass(Noisy):
    rng = NOISE.generators[0]

    def __getitem__(self, index):
        return self.rng.random()


class OfAnotherClass(Noisy):
    def __getitem__(self, index):
        return OfTheClass.rng.random()


class OfAModule(Noisy):
    def __getitem__(self, index):
        return draws.RNG.random()


class Cached(Noisy):
    @functools.lru_cache(maxsize=4)  # noqa: B019
    def table(self):
        return NOISE.generators[0].random()

    def __getitem__(self, index):
        return self.table()


@functools.lru_cache(maxsize=4)
def of_a_cached(value):
    return NOISE(value)


def of_one_cached(value):
    return of_a_cached(value)


def test_generators_of_a_class_of_a_module_and_below_a_cache_are_found():
    assert list(generators_held(OfTheClass(2)).values()) == NOISE.generators
    assert list(generators_held(OfAnotherClass(2)).values()) == NOISE.generators
    assert list(generators_held(OfAModule(2)).values()) == [draws.RNG]
    assert list(generators_held(Cached(2)).values()) == NOISE.generators
    assert list(generators_held(Noisy(2, transform=of_one_cached)).values()) == NOISE.generators


def test_what_the_script_draws_from_a_generator_that_its_dataset_holds_is_as_without_a_loader(feeds):
    shared = np.random.default_rng(5)
    assert len(all_of(feeds.loader([], Noisy(8, transform=Noise(shared)), 4))) == 8
    assert shared.random() == np.random.default_rng(5).random()


def test_generators_are_found_behind_many_labels_and_what_cannot_be_seeded_is_left(feeds):
    by_class = {number: [f"{number}/{image}" for image in range(200)] for number in range(100)}
    other = np.random.RandomState(np.random.PCG64(0))
    data = Noisy(4, by_class=by_class, boxes=[{"box": [1, 2, 3, 4]}] * 5_000, other=other, transform=[NOISE])
    assert list(generators_held(data).values()) == NOISE.generators


class Lazily(Numbers):
    """Makes generators where they are needed: at its first sample, and for each epoch."""

    def __init__(self, size):
        super().__init__(size, rng=None, of_epoch=None, noise=Noise(random.Random(0)))

    def set_epoch(self, epoch):
        self.of_epoch = np.random.default_rng(epoch)

    def __getitem__(self, index):
        self.rng = self.rng or np.random.default_rng(0)
        return self.noise(self.rng.random() + self.of_epoch.random())


def test_generators_that_are_made_late_are_seeded_from_the_first_sample_on(feeds):
    servers = [feeds.serve(2, Lazily(40), 4) for _ in range(2)]
    remote = feeds.loader(servers, Lazily(40), 4)
    epochs = [all_of(remote) for _ in range(3)]
    local = feeds.loader([], Lazily(40), 4, num_workers=2)
    assert [all_of(local) for _ in range(3)] == epochs
    assert len({each for epoch in epochs for each in epoch}) == 120


class Reordered(Numbers):
    def __init__(self, size):
        super().__init__(size, rng=np.random.default_rng(0), order=np.arange(size))

    def set_epoch(self, epoch):
        self.order = self.rng.permutation(len(self.order))

    def __getitem__(self, index):
        return int(self.order[index]) + 0 * int(self.rng.integers(3))


def test_what_set_epoch_draws_from_the_datasets_own_generator_is_the_same_in_all_processes(feeds):
    servers = [feeds.serve(2, Reordered(32), 4) for _ in range(2)]
    loader = feeds.loader(servers, Reordered(32), 4)
    epochs = [all_of(loader) for _ in range(3)]
    assert all(sorted(each) == list(range(32)) for each in epochs)
    assert len({tuple(each) for each in epochs}) == 3
