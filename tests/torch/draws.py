"""Datasets whose samples show their index and random draws, and functions that read these from batches."""

import os
import signal
import time

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

BOTH = pytest.mark.parametrize("remote", [True, False], ids=["feed servers", "local"])


class Draws(Dataset):
    """A dataset whose samples hold their index and draws from torch's and NumPy's generators."""

    def __init__(self, size=53, broken=(), slow=(), endless=(), deadly=()):
        self.size, self.broken, self.slow = size, broken, slow
        self.endless, self.deadly = endless, deadly

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if index in self.broken:
            raise ValueError(f"no picture at {index}")
        if index in self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        while index in self.endless:
            time.sleep(0.01)
        time.sleep(0.2 * (index in self.slow))
        return {"index": index, "torch": torch.rand(2), "numpy": np.random.rand(), "made": (np.float32(index), "name")}


class Numbers(Dataset):
    """A dataset whose samples are its indices, with arbitrary attributes."""

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
    return batch["index"].tolist(), batch["torch"].tolist(), batch["numpy"].tolist(), batch["made"][0].tolist()


def indices(loader):
    return [index for batch in loader for index in batch["index"].tolist()]


def all_of(loader):
    return [each for batch in loader for each in (batch.tolist() if isinstance(batch, torch.Tensor) else batch)]
