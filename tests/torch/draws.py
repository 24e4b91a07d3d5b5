"""Datasets for tests, and functions that read a loader's batches."""

import os
import random
import signal
import time

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

BOTH = pytest.mark.parametrize("remote", [True, False], ids=["feed servers", "local"])


class _Samples:
    """Makes samples. A sample holds its index, random numbers from torch and NumPy, and the epoch (-1 if not set).

    Args:
        broken, slow, endless, deadly: indices of samples that raise, take a while, hang, or kill their process.
    """

    epoch = -1

    def __init__(self, broken=(), slow=(), endless=(), deadly=()):
        self.broken, self.slow, self.endless, self.deadly = broken, slow, endless, deadly

    def sample(self, index):
        if index in self.broken:
            raise ValueError(f"no sample at {index}")
        if index in self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        while index in self.endless:
            time.sleep(0.01)
        time.sleep(0.2 * (index in self.slow))
        draws = {"torch": torch.rand(2), "numpy": np.random.rand()}
        return {"index": index, **draws, "epoch": self.epoch, "made": (np.float32(index), "name")}


class Draws(_Samples, Dataset):
    """A dataset whose samples hold their index and random draws."""

    def __init__(self, size=53, **samples):
        super().__init__(**samples)
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return self.sample(index)


class Lines(_Samples, IterableDataset):
    """The lines of several files. All workers shuffle the files in the same way, and each takes its share of them."""

    def __init__(self, lengths=(7, 1, 5, 9, 0, 4, 6), **samples):
        super().__init__(**samples)
        self.lengths = lengths

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        info = get_worker_info()
        files = list(enumerate(self.lengths))
        random.shuffle(files)
        for number, length in files[info.id :: info.num_workers] if info else files:
            for line in range(length):
                yield self.sample(number * 100 + line)


class Numbers(Dataset):
    """A dataset whose samples are its indices. `attributes` become attributes of the dataset."""

    def __init__(self, size=200, **attributes):
        self.size = size
        vars(self).update(attributes)

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return index


def batches(loader):
    return [plain(batch) for batch in loader]


def plain(batch):
    return [batch[name].tolist() for name in ("index", "torch", "numpy", "epoch")]


def indices(loader):
    return [index for batch in loader for index in batch["index"].tolist()]


def all_of(loader):
    return [each for batch in loader for each in (batch.tolist() if isinstance(batch, torch.Tensor) else batch)]


def all_lines(lengths):
    return sorted(number * 100 + line for number, length in enumerate(lengths) for line in range(length))


def lines_in(batches):
    return sorted(index for batch in batches for index in batch[0])
