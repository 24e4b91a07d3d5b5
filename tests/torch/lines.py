"""A stream of lines for several tests, and functions that read its batches."""

import os
import random
import signal
import time

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info


class Lines(IterableDataset):
    """The lines of several files. All workers shuffle the files in the same way, and each takes its share of them."""

    def __init__(self, lengths=(7, 1, 5, 9, 0, 4, 6), broken=(), deadly=(), endless=()):
        self.lengths = lengths
        self.broken, self.deadly, self.endless = broken, deadly, endless
        self.epoch = None

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        info = get_worker_info()
        files = list(enumerate(self.lengths))
        random.shuffle(files)
        for number, length in files[info.id :: info.num_workers] if info else files:
            for line in range(length):
                index = number * 100 + line
                if index in self.broken:
                    raise ValueError(f"no line {index}")
                if index in self.deadly:
                    os.kill(os.getpid(), signal.SIGKILL)
                while index in self.endless:
                    time.sleep(0.01)
                yield {"index": index, "draws": torch.rand(2), "numpy": np.random.rand(), "epoch": self.epoch}


def plain(batch):
    return batch["index"].tolist(), batch["draws"].tolist(), batch["numpy"].tolist(), batch["epoch"].tolist()


def all_lines(lengths):
    return sorted(number * 100 + line for number, length in enumerate(lengths) for line in range(length))


def indices(batches):
    return sorted(index for batch in batches for index in batch[0])
