"""Batches are what they were when they were made, whatever memory they lie in and block they are first asked for in."""

import numpy as np
import pytest
import torch
from headrace.torch.reused import LOOKED_AT, Reused
from torch.utils.data import Dataset, IterableDataset

SIZE, BATCHES = 1 << 18, 12


class FillsOneArray(IterableDataset):
    def __init__(self, of_torch):
        self.buffer = torch.zeros(SIZE) if of_torch else np.zeros(SIZE, np.float32)

    def __iter__(self):
        for number in range(BATCHES):
            self.buffer[:] = number
            yield self.buffer if isinstance(self.buffer, torch.Tensor) else torch.from_numpy(self.buffer)


class Numbers(Dataset):
    def __len__(self):
        return BATCHES

    def __getitem__(self, index):
        return index


class FillsItsOwn:
    """A collate_fn that keeps the memory of its batches, as some for pinned memory do."""

    def __init__(self):
        self.buffers = [torch.zeros(SIZE) for _ in range(2)]

    def __call__(self, numbers):
        buffer = self.buffers[numbers[0] % 2]
        buffer[:] = numbers[0]
        return buffer


def assert_whole(batches):
    kept = list(batches)
    assert [float(each.min()) for each in kept] == [float(each.max()) for each in kept] == list(range(BATCHES))


@pytest.mark.parametrize("of_torch", [True, False])
def test_a_stream_that_yields_one_array_again_and_again_gives_each_batch_as_it_was(feeds, of_torch):
    address = feeds.serve(1, FillsOneArray(of_torch), None)
    assert_whole(feeds.loader([address], FillsOneArray(of_torch), None))
    # In local mode, with a process for each part as ranks have it.
    assert_whole(each.clone() for each in feeds.loader([], FillsOneArray(of_torch), None, num_workers=1))


def test_a_collate_fn_that_fills_its_own_memory_gives_each_batch_as_it_was(feeds):
    address = feeds.serve(1, Numbers(), 1, collate_fn=FillsItsOwn())
    assert_whole(feeds.loader([address], Numbers(), 1, collate_fn=FillsItsOwn()))


class Asks(Dataset):
    """Batches with a gradient, which a queue between processes takes as long as they are leaves."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.ones(2, requires_grad=True)


def test_a_copy_is_as_good_as_what_it_is_of(feeds):
    batches = list(feeds.loader([], Asks(), None, num_workers=1))
    assert len(batches) == 6 and all(each.requires_grad and each.is_leaf for each in batches)


def test_only_what_comes_again_is_copied_after_the_first_batches():
    reused, same, kept = Reused(), torch.zeros(4), torch.ones(2)
    made = [reused.own({"again": same, "new": torch.zeros(4), "own": kept[:1]}) for _ in range(LOOKED_AT + 2)]
    assert all(each["again"].data_ptr() != same.data_ptr() for each in made)
    last = {"again": same, "new": torch.zeros(4)}
    assert reused.own(last)["new"] is last["new"] and reused.own(last)["again"] is not same


class Multiplies(Dataset):
    """Samples that autocast would round, with a gradient of their own."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        x = torch.full((8, 8), 1.0 + index / 1000, requires_grad=True)
        (gradient,) = torch.autograd.grad((x @ x).sum(), x)
        return (x @ x).detach(), gradient


@pytest.mark.parametrize("block", [lambda: torch.autocast("cpu", torch.bfloat16), torch.no_grad, torch.inference_mode])
def test_a_block_around_the_first_batch_is_not_the_feeds(feeds, block):
    with block():
        address = feeds.serve(1, Multiplies(), 4)
        next(iter(feeds.loader([address], Multiplies(), 4)))
    (batch,) = list(feeds.loader([address], Multiplies(), 4))
    (plain,) = list(torch.utils.data.DataLoader(Multiplies(), 4))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(batch, plain, strict=True))
