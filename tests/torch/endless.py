"""A sampler without an end, and so many batches of a loader."""

import itertools
import random

import numpy as np
import torch
from torch.utils.data import Sampler


class Endless(Sampler):
    """Shuffles its dataset again and again; draws of the generator that it is told."""

    def __init__(self, size=53, draw="torch", start=0, step=1):
        self.size, self.draw, self.start, self.step = size, draw, start, step

    def __iter__(self):
        return itertools.islice(self.all(), self.start, None, self.step)

    def all(self):
        own = np.random.RandomState(0)
        while True:
            order = list(range(self.size))
            if self.draw == "torch":
                order = torch.randperm(self.size).tolist()
            elif self.draw == "own":
                own.shuffle(order)
            elif self.draw == "numpy":
                np.random.shuffle(order)
            else:
                random.shuffle(order)
            yield from order


def batches(loader, count):
    taken = iter(loader)
    found = [batch["index"].tolist() for batch in itertools.islice(taken, count)]
    taken.close()
    return found
