"""What functions of the script's read while they make samples is looked at between epochs; what they write is not."""

import collections
import sys
import types

import pytest
import torch
from headrace.errors import InputError

from tests.torch.test_what_people_write import Numbers

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


class Slim:
    __slots__ = ("most",)

    def __init__(self, most):
        self.most = most


slim = Slim(9)


class AttrDict(dict):
    __getattr__, __setattr__ = dict.__getitem__, dict.__setitem__


options = AttrDict(scale=1)


class Helped(Numbers):
    def set_epoch(self, epoch):
        Settings.stage = epoch
        self.base.epoch = epoch
        self.counting.go_to(epoch)

    def __getitem__(self, index):
        return self.counting(self.transform(made_stronger(index))) * options.scale + Settings.stage + slim.most


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
        self.words, self.sizes, self.seen = Slim(5), [1, 2], []
        self.counts = collections.Counter("ab")

    def prepare(self, number):
        return number

    def collate(self, samples):
        self.calls += 1
        self.seen.append(len(samples))
        best = self.share
        return torch.tensor(samples[: self.words.most]) * best * self.sizes[0] * self.counts["b"]


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
        (mixer.collate, lambda: setattr(mixer.words, "most", 2), "collate_fn.words.most"),
        (mixer.collate, lambda: mixer.sizes.append(3), "collate_fn.sizes"),
        (mixer.collate, lambda: mixer.counts.update("a"), "collate_fn.counts"),
        (mixed, lambda: setattr(slim, "most", 4), "global slim.most"),
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
