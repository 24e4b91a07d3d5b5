"""Which of its attributes a dataset changes itself: those may differ from what data hosts have, others may not."""

import argparse
import multiprocessing
import random
import threading

import numpy as np
import pytest
import torch
from headrace.errors import InputError
from headrace.torch.dataset_writes import written_while_training

from tests.torch.test_what_people_write import Numbers, all_of


class Cached(Numbers):
    """As people write them: what it reads, what it fills, and what it only calls."""

    def __getitem__(self, index):
        if index not in self.cache:
            self.cache[index] = self.load(index)
        kept = self.recent
        kept.append(index)
        self.seen += 1
        self.counts[index % 3] += 1
        self.by_kind.setdefault("all", []).append(index)
        random.shuffle(self.order)
        self.keep(self.lately, index)
        label = self.labels[index].copy()
        label[0] = self.size
        out = {}
        out["x"] = self.mean + self.transform(self.images[index])
        self.buffer.add_(1)
        return out, label

    def load(self, index):
        return self.images[index] * self.std

    def keep(self, where, index):
        where.append(index)

    def set_epoch(self, epoch):
        self.stage = epoch


FILLED = {"cache", "recent", "seen", "counts", "by_kind", "order", "lately", "buffer", "stage"}


def test_what_a_dataset_fills_is_told_from_what_it_only_reads():
    assert written_while_training(Cached) == FILLED


class Corrected(Numbers):
    """Its `update` and `append` are the training loop's; the sample calls those of containers."""

    def __getitem__(self, index):
        sample, seen = {}, []
        sample.update(x=self.images[index])
        seen.append(index)
        self.log.append(index)
        return type(self).scaled(self, sample), [Corrected.shift(self, each) for each in seen]

    def scaled(self, sample):
        self.calls += 1
        return sample

    def shift(self, each):
        self.shifts += 1
        return each

    def update(self, label):
        self.images = label

    def append(self, image):
        self.appended = image


def test_a_method_is_not_taken_for_the_containers_method_of_that_name():
    assert written_while_training(Corrected) == {"log", "calls", "shifts"}


class Passing(Numbers):
    """Hands what it holds to methods of its own, of which some change what they are given."""

    def __getitem__(self, index):
        self.put(self.filled, index)
        return (
            self.scale(self.level, index),
            self.first(self.read),
            self.keep(index, self.kept),
            self.told(self.unknown),
        )

    @staticmethod
    def put(where, index):
        where[index] = True

    def scale(self, level, index):
        return level * index

    def first(self, values):
        return self.scale(values[0], 2)

    def keep(self, index, where):
        return self.put(where, index)


class Transform:
    def __call__(self, value):
        return value * self.level

    def set_epoch(self, epoch):
        self.level = epoch


def test_what_a_method_of_its_own_only_reads_and_what_nobody_tells_of_an_epoch_is_not_taken_for_written():
    assert written_while_training(Passing) == {"filled", "kept", "unknown"}
    assert written_while_training(Transform) == set()


def test_without_its_source_more_counts_as_written():
    made = {}
    source = (
        "class Made(Numbers):\n    def __getitem__(self, i):\n        self.cache[i] = self.mean\n        return i\n"
    )
    exec(source, {"Numbers": Numbers}, made)
    assert {"cache"} <= written_while_training(made["Made"])


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
