"""An epoch's samples are the same in each process, whatever `set_epoch` does to what it finds."""

import random

import pytest
import torch
from headrace.errors import InputError
from headrace.torch import epoch_state
from headrace.torch.dataset_epochs import tell_epoch
from torch.utils.data import IterableDataset, get_worker_info

from tests.torch.test_what_people_write import BOTH, Numbers, all_of


class Shuffled(Numbers):
    """As people write it: in place."""

    def __init__(self, size=32):
        super().__init__(size, items=list(range(size)))

    def set_epoch(self, epoch):
        random.Random(epoch).shuffle(self.items)

    def __getitem__(self, index):
        return self.items[index]


class Raised(Numbers):
    def __init__(self):
        super().__init__(8, level=0, calls=0)

    def set_epoch(self, epoch):
        self.calls += 1
        self.level += 1

    def __getitem__(self, index):
        return index * self.level


@pytest.fixture(autouse=True)
def a_process_of_its_own(monkeypatch):
    monkeypatch.setattr(epoch_state, "_known", {})


def test_a_list_that_is_shuffled_in_place_begins_alike_in_processes_that_had_other_epochs():
    one, other = Shuffled(), Shuffled()
    for epoch in range(4):
        tell_epoch([one], 0, epoch)
    tell_epoch([other], 0, 3)
    assert one.items == other.items != list(range(32))


def test_what_the_script_has_changed_meanwhile_is_kept():
    data = Shuffled(4)
    tell_epoch([data], 0, 0)
    data.items = [9, 9, 9, 9]
    tell_epoch([data], 0, 1)
    assert data.items == [9, 9, 9, 9]
    data.items.append(8)
    tell_epoch([data], 0, 2)
    assert sorted(data.items) == [8, 9, 9, 9, 9]


def test_samples_made_of_a_number_that_set_epoch_adds_to_are_refused():
    with pytest.raises(InputError, match=r"set_epoch of Raised adds to level, of which samples are made"):
        tell_epoch([Raised()], 0, 0)


@BOTH
def test_each_sample_comes_once_an_epoch_where_set_epoch_shuffles_in_place(feeds, remote):
    addresses = [feeds.serve(2, Shuffled(), 4) for _ in range(2)] if remote else []
    loader = feeds.loader(addresses, Shuffled(), 4)
    epochs = [all_of(loader) for _ in range(4)]
    assert all(sorted(epoch) == list(range(32)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


class Streamed(IterableDataset):
    """Keeps its epoch as Hugging Face's streams do: in a number that processes share, written in place."""

    def __init__(self):
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch):
        self._epoch += epoch - self._epoch

    def __iter__(self):
        info = get_worker_info()
        order = random.Random(int(self._epoch)).sample(range(12), 12)
        return iter(order[info.id :: info.num_workers] if info else order)


@pytest.mark.parametrize("sets_epoch", [False, True])
def test_a_stream_whose_epoch_is_shared_by_processes_has_each_epoch_once(feeds, sets_epoch):
    loader = feeds.loader([], Streamed(), 3, num_workers=2)
    epochs = []
    for epoch in range(4):
        if sets_epoch:
            loader.set_epoch(epoch)
        epochs.append(all_of(loader))
    assert len({tuple(each) for each in epochs}) == 4 and loader.epoch == 3
