"""An endless sampler, and a function that takes a number of batches from a loader."""

import itertools
import random

import numpy as np
import torch
from torch.utils.data import Sampler


class Endless(Sampler):
    """A sampler that shuffles its dataset again and again, with the generator named by `draw`."""

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
