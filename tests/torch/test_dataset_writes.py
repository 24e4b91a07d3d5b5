"""What a script changes of a dataset while it trains is refused or told; what the dataset changes itself is not."""

import argparse
import multiprocessing
import threading

import numpy as np
import pytest
import torch
from headrace.errors import InputError
from headrace.torch.dataset_writes import written_while_training

from tests.torch.test_what_people_write import Numbers, all_of


class Mosaic(Numbers):
    def __getitem__(self, index):
        label = [0]
        label[0] = self.pseudo_labels.get(index, self.mosaic)
        return float(label[0] + self.shared.value) * SIZE * args.strength


SIZE = 32
args = argparse.Namespace(strength=0.5, lr=0.1)


def change_global(loader):
    global SIZE
    SIZE += 32


def change_argument(loader):
    args.lr, args.strength = 0.2, args.strength + 1


def change_dataset(loader):
    loader.dataset.mosaic = False


def fill_dataset(loader):
    loader.dataset.pseudo_labels[3] = 1


def change_collate(loader):
    loader.collate_fn.mixup = False


def change_shared(loader):
    loader.dataset.shared.value = 3


class Collate:
    mixup = True

    def __init__(self):
        self.mixup = True

    def __call__(self, samples):
        return torch.tensor(samples) + self.mixup


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (change_dataset, "mosaic"),
        (fill_dataset, "pseudo_labels"),
        (change_collate, "collate_fn.mixup"),
        (change_shared, "shared"),
        (change_global, "global SIZE"),
        (change_argument, "global args.strength"),
    ],
)
def test_what_a_script_switches_off_while_it_trains_is_refused_on_data_hosts(feeds, change, name):
    shared = multiprocessing.Value("i", 0)
    data = Mosaic(8, mosaic=True, shared=shared, pseudo_labels={})
    address = feeds.serve(1, data, 4, collate_fn=Collate())
    loader = feeds.loader([address], data, 4, collate_fn=Collate())
    assert len(list(loader)) == 2
    change(loader)
    with pytest.raises(InputError, match=rf"has changed since the first batch \({name}\)"):
        list(loader)


class Staged(Numbers):
    def __getitem__(self, index):
        return index + self.stage


def test_a_dataset_that_the_script_changes_while_it_trains_is_refused_on_data_hosts(feeds):
    address = feeds.serve(1, Staged(20, stage=0, transform=None), 4)
    data = Staged(20, stage=0, transform=None)
    loader = feeds.loader([address], data, 4)
    data.stage = 0
    list(loader)
    data.stage = 1
    with pytest.raises(InputError, match=r"has changed since the first batch \(stage\)"):
        list(loader)


TABLE = np.arange(8)


class OfAGlobalArray(Numbers):
    """Reads a global that compares by its elements."""

    def __len__(self):
        return TABLE.shape[0]

    def __getitem__(self, index):
        self.rows[index].update(seen=1)
        [{}][0].update(seen=TABLE.size)
        assert TABLE.shape != ()
        return int(TABLE[index])

    def update(self, labels):
        self.labels = labels


def test_a_global_that_compares_by_its_elements_and_containers_in_containers_are_no_obstacle(feeds):
    assert written_while_training(OfAGlobalArray) == {"rows"}
    rows = [{} for _ in range(8)]
    assert all_of(feeds.loader([], OfAGlobalArray(8, rows=rows), 4)) == list(range(8))


def test_what_the_script_changes_during_its_last_pass_is_told_at_the_end(feeds, capfd):
    address = feeds.serve(1, Staged(20, stage=0), 4)
    data = Staged(20, stage=0)
    for number, _ in enumerate(feeds.loader([address], data, 4)):
        data.stage = number // 3
    (told,) = [line for line in capfd.readouterr().out.splitlines() if line.startswith("warning:")]
    assert "how it was before: the dataset of loader 1 has changed since the first batch (stage)" in told


class Keeping(Numbers):
    def __getitem__(self, index):
        self.cache[index] = index
        return self.cache[index]


def test_what_a_script_opens_or_the_dataset_itself_fills_meanwhile_is_no_change(feeds):
    address = feeds.serve(1, Keeping(20, file=None, cache={}, lock=None), 4)
    data = Keeping(20, file=None, cache={}, lock=None)
    loader = feeds.loader([address], data, 4)
    list(loader)
    assert data[3] == 3
    data.file, data.lock = open(__file__), threading.Lock()  # noqa: SIM115
    assert len(all_of(loader)) == 20
