"""Datasets whose samples are made of what a training loop may note on them, each read in another way."""

import torch
from torch.utils.data import Dataset

NAME = "losses"


class Plain(Dataset):
    def __init__(self, **attributes):
        self.losses, self.history, self.owner, self.size = [0.0] * 8, [], None, 8
        for name, value in attributes.items():
            setattr(self, name, value)

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.tensor(index)

    def hardest(self):
        return max(range(self.size), key=lambda index: self.losses[index])

    def __repr__(self):
        return f"losses {self.losses}"

    def __getstate__(self):
        return vars(self) | {"losses": None}


def shifted(data, index):
    return data.losses[index]


class ByAFunction(Plain):
    def __getitem__(self, index):
        return shifted(self, index)


class ByAName(Plain):
    def __getitem__(self, index):
        return getattr(self, NAME)[index]


class ByItsDict(Plain):
    def __getitem__(self, index):
        return self.__dict__["losses"][index]


class ByAProperty(Plain):
    @property
    def hard(self):
        return self.losses

    def __getitem__(self, index):
        return self.hard[index]


class ByAMethod(Plain):
    def __getitem__(self, index):
        return self.hardest()


class InSetEpoch(Plain):
    def set_epoch(self, epoch):
        self.order = sorted(self.losses)


class InAText(Plain):
    def __getitem__(self, index):
        return "{0.losses}".format(self)  # noqa: UP030, UP032


def decorated(function):
    def inner(self, index):
        return function(self, index)

    return inner


class BelowADecorator(Plain):
    @decorated
    def __getitem__(self, index):
        return self.losses[index]


class Reader:
    def read(self, data):
        return data.losses


reader = Reader()


class ByAGlobalObject(Plain):
    def __getitem__(self, index):
        return reader.read(self)[index]


class MadeOfIt:
    def __init__(self, data):
        self.value = data.losses[0]


class ByAClass(Plain):
    def __getitem__(self, index):
        return MadeOfIt(self).value


class Transform:
    def __init__(self, apply):
        self.apply = apply

    def __call__(self, x):
        return self.apply(x)


many = [Transform(abs) for _ in range(50)]
many[40] = Transform(lambda x: plain.losses[x])
plain = Plain()


class ByTransforms(Plain):
    def __getitem__(self, index):
        for each in self.transforms:
            index = each(index)
        return index
