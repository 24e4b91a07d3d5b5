"""Which of its attributes a dataset changes itself: those may differ from what data hosts have, others may not."""

import argparse
import multiprocessing
import random
import sys
import threading
import types

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
        return float(label[0]) * SIZE * args.strength


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


STRENGTH, MIX, CALLS, KEPT, WEIGHTS, steps = 1, 0.5, 0, {}, [1.0], 0
cfg = types.ModuleType("cfg_of_a_script")
cfg.__file__, cfg.noise, sys.modules["cfg_of_a_script"] = "/project/cfg_of_a_script.py", 0.1, cfg


class Settings:
    size, calls, stage = 32, 0, 0


def made_stronger(number):
    global CALLS
    CALLS += 1
    Settings.calls = Settings.calls + 1
    KEPT[number] = CALLS
    return number * STRENGTH * Settings.size


class AttrDict(dict):
    __getattr__, __setattr__ = dict.__getitem__, dict.__setitem__


options = AttrDict(scale=1)


class Helped(Numbers):
    def set_epoch(self, epoch):
        Settings.stage = epoch
        self.base.epoch = epoch
        self.counting.go_to(epoch)

    def __getitem__(self, index):
        return self.counting(self.transform(made_stronger(index))) * options.scale + Settings.stage


def noisy(number):
    made = {}
    made["noise"] = cfg.noise * WEIGHTS[0]
    report(number)
    return number + made["noise"]


def report(problem):
    if steps % 2:
        print(f"step {steps}: {problem}")
    return problem


class Counting:
    """Keeps what it needs once it is needed, and is told of epochs."""

    def __init__(self):
        self.calls, self.stage, self.table = 0, 0, None

    @property
    def weights(self):
        if self.table is None:
            self.table = [1.0]
        return self.table

    def __call__(self, value):
        self.calls += 1
        return value * self.weights[0]

    def go_to(self, stage):
        self.stage = stage


class Images:
    """As torchvision's datasets are: what it transforms by may be None, or no list."""

    def __init__(self, transforms=None):
        self.transform, self.transforms = None, transforms

    def __getitem__(self, index):
        return index


def mixed(samples):
    return torch.tensor(samples) * MIX


class Mixer:
    def __init__(self):
        self.share, self.calls, self.best = 0.5, 0, 0.0

    def prepare(self, number):
        return number

    def collate(self, samples):
        self.calls += 1
        best = self.share
        return torch.tensor(samples) * best


def around(part):
    calls = 0

    def collate(samples):
        nonlocal calls
        calls += 1
        return torch.tensor(samples) * part

    def change(value):
        nonlocal part
        part = value

    return collate, change


mixer, (within, change_within) = Mixer(), around(0.5)


@pytest.mark.parametrize(
    ("collate_fn", "change", "name"),
    [
        (mixed, lambda: globals().update(STRENGTH=2), "global STRENGTH"),
        (mixed, lambda: setattr(Settings, "size", 64), "global Settings.size"),
        (mixed, lambda: setattr(cfg, "noise", 0.2), "global cfg.noise"),
        (mixed, lambda: WEIGHTS.append(1.0), "global WEIGHTS"),
        (mixed, lambda: options.update(scale=2), "global options.scale"),
        (mixed, lambda: globals().update(MIX=0.25), "collate_fn.MIX"),
        (mixer.collate, lambda: setattr(mixer, "share", 0.25), "collate_fn.share"),
        (within, lambda: change_within(0.25), "collate_fn.part"),
    ],
)
def test_what_helping_functions_read_is_looked_at_and_what_they_write_is_not(feeds, collate_fn, change, name):
    global steps
    held = {"base": Images(), "counting": Counting(), "other": Images(transforms=noisy)}
    data = Helped(8, transform=noisy, also=lambda x: mixer.prepare(x), **held)
    address = feeds.serve(1, data, 4, collate_fn=collate_fn)
    loader = feeds.loader([address], data, 4, collate_fn=collate_fn)
    assert len(list(loader)) == 2
    collate_fn([data[0]])  # as a validation loader of this process would
    mixer.best, steps = 1.0, steps + 1
    data.set_epoch(steps)
    assert len(list(loader)) == 2
    change()
    with pytest.raises(InputError, match=rf"has changed since the first batch \({name}\)"):
        list(loader)


def test_a_dataset_that_the_script_changes_while_it_trains_is_refused_on_data_hosts(feeds):
    address = feeds.serve(1, Numbers(20, stage=0, transform=None), 4)
    data = Numbers(20, stage=0, transform=None)
    loader = feeds.loader([address], data, 4)
    data.stage = 0
    list(loader)
    data.stage = 1
    with pytest.raises(InputError, match=r"has changed since the first batch \(stage\)"):
        list(loader)


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
