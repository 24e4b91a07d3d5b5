"""A correct script. Its transforms, datasets and training loop change objects during training, which is allowed.

It guards `main`, makes its own process group, wraps the model in DDP before it makes loaders, splits the dataset
randomly, and holds a port open.
"""

import functools
import hashlib
import socket
import threading

import headrace.torch
import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset, random_split

SIZE = 24


class Numbers(Dataset):
    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return torch.tensor([float(index)])


class Transformed(Numbers):
    """A dataset with a random generator `R` and a flag that changes with each sample, as in MONAI's transforms."""

    def __init__(self):
        self.R = np.random.RandomState(0)

    def __getitem__(self, index):
        self._do_transform = self.R.rand() < 0.5
        return super().__getitem__(index) + self._do_transform * self.R.uniform(-1, 1)


class KnowsItsRank(Numbers):
    """A dataset that holds its rank, for log messages."""

    def __init__(self):
        self.rank, self.world = headrace.torch.rank(), headrace.torch.world_size()


class ReadsAhead(Numbers):
    """A dataset whose own thread fills a cache."""

    def __init__(self):
        self.cache, self.thread = {}, None

    def fill(self):
        self.cache |= {index: torch.tensor([float(index)]) for index in range(SIZE)}

    def __getitem__(self, index):
        if self.thread is None:
            self.thread = threading.Thread(target=self.fill, daemon=True)
            self.thread.start()
        cached = self.cache.get(index)
        return super().__getitem__(index) if cached is None else cached


class Keeps(Numbers):
    """A dataset with an attribute `results`. The training loop stores results there."""

    def __init__(self):
        self.results = {}


class Staged(Numbers):
    """A dataset whose `set_epoch` changes an attribute `step`. Its `__getitem__` has a local variable `step`."""

    step = stage = 0

    def set_epoch(self, epoch):
        self.step, self.stage = self.step + 1, epoch

    def __getitem__(self, index):
        step = index + self.stage
        return torch.tensor([float(step)])


def collate_of(samples, rank):
    return torch.stack(samples)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    if not headrace.torch.is_feed_server():
        for_metrics = socket.create_server(("", 0))  # noqa: F841
    split, _ = random_split(Numbers(), [16, 8])
    made = [Transformed(), KnowsItsRank(), ReadsAhead(), Keeps(), Staged(), split, Numbers()]
    collate = functools.partial(collate_of, rank=rank)
    loaders = [headrace.torch.DataLoader(data, 4, shuffle=True, collate_fn=collate) for data in made]
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    if rank == 0:
        torch.jit.trace(model.module, next(iter(loaders[-1])))  # as SummaryWriter.add_graph does
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    for data, loader in zip(made, loaders, strict=True):
        digest = hashlib.sha256()
        for epoch in range(2):
            loader.set_epoch(epoch)
            for x in loader:
                digest.update(x.numpy().tobytes())
                loss = model(x).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                data.result = loss.item()
                getattr(data, "results", {})[epoch] = data.result
        print(f"trained on {type(data).__name__}: {digest.hexdigest()}")
        print(f"on data hosts: {loader.made_elsewhere}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
