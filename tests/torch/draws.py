"""A dataset that shows its draws, and what is seen of its batches."""

import os
import signal
import time

import numpy as np
import torch

RNG = np.random.default_rng(3)
"""Of a module that a script imports."""


class Draws(torch.utils.data.Dataset):
    """Each sample: its index, and draws of all three generators."""

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


class Closing(Draws):
    """Closes descriptors that are not its own, as what makes daemons of processes does."""

    def __getitem__(self, index):
        os.closerange(0, 3)
        return super().__getitem__(index)


def batches(loader):
    return [plain(batch) for batch in loader]


def plain(batch):
    return batch["index"].tolist(), batch["torch"].tolist(), batch["numpy"].tolist(), batch["made"][0].tolist()


def indices(loader):
    return [index for batch in loader for index in batch["index"].tolist()]
