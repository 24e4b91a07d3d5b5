"""Several ranks together get the samples that a sampler yields on one rank."""

import collections
import itertools
import random

import numpy as np
import pytest
import torch
from headrace.errors import InputError
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, Sampler
from torch.utils.data import DataLoader as TorchDataLoader

from tests.torch.draws import BOTH, Draws, Numbers, all_of, indices


class Backwards(Sampler):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __iter__(self):
        return iter(range(self.count - 1, -1, -1))


def test_a_sampler_of_ones_own_is_dealt_to_the_ranks(feeds):
    address = feeds.serve(1, Draws(), 4)
    by_rank = [indices(feeds.loader([address], Draws(), 4, sampler=Backwards(53), rank=r, world=2)) for r in (0, 1)]
    assert by_rank == [list(range(52, -1, -2)), [*range(51, 0, -2), 52]]


@BOTH
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_loader_of_torchs_made_of_ones_batch_sampler_has_the_ranks_own_batches(feeds, remote, drop_last):
    """After a resume, Hugging Face's Trainer makes a torch loader from headrace's batch sampler, with Accelerate's
    `skip_first_batches`."""
    arguments = {"shuffle": True, "drop_last": drop_last, "seed": 3}
    addresses = [feeds.serve(1, Draws(), 4, **arguments)] if remote else []
    for rank in (0, 1):
        whole = feeds.loader(addresses, Draws(), 4, rank=rank, world=2, **arguments)
        epochs = [[batch["index"].tolist() for batch in whole] for _ in range(3)]
        loader = feeds.loader(addresses, Draws(), 4, rank=rank, world=2, **arguments)
        loader.batch_sampler.set_epoch(1)  # the Trainer calls this
        skipping = itertools.islice(loader.batch_sampler, 2, None)
        resumed = [batch["index"].tolist() for batch in TorchDataLoader(Draws(), batch_sampler=list(skipping))]
        assert (resumed, len(loader.batch_sampler)) == (epochs[1][2:], len(epochs[1]))
        assert [[batch["index"].tolist() for batch in loader] for _ in range(2)] == epochs[1:]
        assert list(loader.batch_sampler) == list(loader.batch_sampler) != epochs[2]


def test_a_sampler_that_deals_to_ranks_itself_is_refused(feeds):
    class InGroups(BatchSampler):
        """A script's own batch sampler, which groups the samples of another sampler."""

        def __iter__(self):
            return reversed(list(super().__iter__()))

    def twice(sampler, of=BatchSampler):
        return feeds.loader([], Draws(), batch_sampler=of(sampler, 4, False), rank=0, world=2)

    with pytest.raises(InputError, match="divides samples among 2 ranks, but the loader already does so"):
        twice(DistributedSampler(Draws(), 2, 0), InGroups)
    assert sum(len(batch["index"]) for batch in twice(RandomSampler(Draws()))) == 28


@BOTH
@pytest.mark.parametrize("drop_last, drop_uneven", [(False, False), (True, False), (True, True)])
def test_torchs_batches_of_a_distributed_sampler_are_those_of_a_plain_loader(feeds, remote, drop_last, drop_uneven):
    def sampler(rank):
        inner = DistributedSampler(Draws(), 2, rank, seed=3, drop_last=drop_uneven)
        return BatchSampler(inner, 4, drop_last=drop_last)

    addresses = [feeds.serve(1, Draws(), batch_sampler=sampler(0))] if remote else []
    for rank in (0, 1):
        theirs, ours = sampler(rank), sampler(rank)
        plainly = TorchDataLoader(Draws(), batch_sampler=theirs)
        loader = feeds.loader(addresses, Draws(), batch_sampler=ours, rank=rank, world=2)
        assert len(loader) == len(plainly)
        for epoch in (0, 1, 5):
            theirs.sampler.set_epoch(epoch)
            ours.sampler.set_epoch(epoch)
            assert [each["index"].tolist() for each in loader] == [each["index"].tolist() for each in plainly]
    with pytest.raises(ValueError, match="batch_sampler option is mutually exclusive"):
        feeds.loader([], Draws(), 4, batch_sampler=sampler(0), rank=0, world=2)


Pair = collections.namedtuple("Pair", "one other")


class Asked(torch.utils.data.Dataset):
    """A dataset whose samples are the text of their index."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return repr(index)


@BOTH
@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"batch_size": None, "sampler": BatchSampler(Backwards(5), 2, False)}, ["[4, 3]", "[2, 1]", "[0]"]),
        ({"batch_sampler": [[(True, 3), ("a", 4)], [(False, 5)]]}, [["(True, 3)", "('a', 4)"], ["(False, 5)"]]),
        ({"batch_size": 2, "sampler": [("a", [1, (2,)]), ("b", [])]}, [["('a', [1, (2,)])", "('b', [])"]]),
        ({"batch_size": None, "sampler": [(np.int64(1), np.True_, 0.5)]}, ["(1, True, 0.5)"]),
        ({"batch_size": 2, "sampler": [(1, 0.5), (2, 1.0)]}, [["(1, 0.5)", "(2, 1.0)"]]),
    ],
    ids=["lists", "tuples of a batch sampler", "nested", "of NumPy's numbers", "with a number that is not whole"],
)
def test_a_dataset_is_asked_for_whatever_its_sampler_yields(feeds, remote, options, asked):
    assert list(feeds.with_server(remote, Asked(), **options)) == asked


@pytest.mark.parametrize("index", [None, 0.5, {"a": 1}, [[[[1]]]], torch.arange(2), Pair(1, 2)])
def test_what_is_no_index_is_refused_and_an_empty_batch_too(feeds, index):
    with pytest.raises(InputError, match="An index must be an integer, a string, or a plain tuple or list of numbers"):
        list(feeds.loader([], Draws(), 2, sampler=[index, index]))
    with pytest.raises(InputError, match="a batch without samples"):
        list(feeds.loader([], Draws(), batch_sampler=[[1], []]))


def test_a_distributed_sampler_may_stay_and_its_set_epoch_counts_before_and_after_the_loader_is_made(feeds):
    for rank in (0, 1):
        sampler = DistributedSampler(Draws(), 2, rank, shuffle=True, seed=3)
        sampler.set_epoch(7)
        loader = feeds.loader([], Draws(), 4, sampler=sampler, rank=rank, world=2)
        assert indices(loader) == list(sampler)
        for epoch in (0, 5):
            sampler.set_epoch(epoch)
            assert indices(loader) == list(sampler)


class Turning(Sampler):
    """A sampler with another order in each epoch."""

    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 20

    def __iter__(self):
        return iter(random.Random(self.epoch).sample(range(20), 20))


def test_the_loaders_epoch_reaches_a_sampler_that_has_a_set_epoch(feeds):
    loader = feeds.loader([], Numbers(20), 4, sampler=Turning())
    loader.set_epoch(5)
    for epoch in (5, 6):
        assert all_of(loader) == random.Random(epoch).sample(range(20), 20)


class Again:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


def test_a_sampler_that_is_put_into_a_loader_later_is_refused(feeds):
    """timm's MultiEpochsDataLoader and YOLO's InfiniteDataLoader replace their batch sampler like this."""
    loader = feeds.loader([], Draws(), 4)
    with pytest.raises(InputError, match="pass the sampler when you make the loader"):
        object.__setattr__(loader, "batch_sampler", Again(loader.batch_sampler))


@pytest.mark.parametrize("buffer", [np.zeros(4, np.int64), [0] * 4], ids=["an array", "a list"])
def test_a_batch_sampler_may_fill_one_buffer_again_and_again(feeds, buffer):
    class Fills:
        def __iter__(self):
            for first in range(0, 52, 4):
                buffer[:] = range(first, first + 4)
                yield buffer

    loader = feeds.loader([], Draws(), batch_sampler=Fills())
    assert [batch["index"].tolist() for batch in loader] == [list(range(first, first + 4)) for first in range(0, 52, 4)]
