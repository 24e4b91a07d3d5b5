"""Right scripts, one after another: transforms, datasets and loops that change what they hold while they train."""

import functools
import hashlib
import threading

import headrace.torch
import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

SIZE = 24
headrace.torch.init()
rank = headrace.torch.rank()
torch.manual_seed(0)


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return torch.tensor([float(index)])


class RandomizedOnEachCall:
    """As MONAI's transforms: they note whether they do something, and hold a generator."""

    def __init__(self):
        self.R, self._do_transform, self._param = np.random.RandomState(0), False, None

    def __call__(self, value):
        self._do_transform = self.R.rand() < 0.5
        if self._do_transform:
            self._param = self.R.uniform(-1, 1)
            value = value + self._param
        return value


class Transformed(Numbers):
    def __init__(self):
        self.transform = RandomizedOnEachCall()

    def __getitem__(self, index):
        return self.transform(super().__getitem__(index))


class KnowsItsRank(Numbers):
    """For what it logs."""

    def __init__(self):
        self.rank, self.world = headrace.torch.rank(), headrace.torch.world_size()


def collate_of(samples, rank):
    return torch.stack(samples)


class ReadsAhead(Numbers):
    """Fills a cache by a thread of its own."""

    def __init__(self):
        self.cache, self.thread = {}, None

    def fill(self):
        for index in range(SIZE):
            self.cache[index] = torch.tensor([float(index)])

    def __getitem__(self, index):
        if self.thread is None:
            self.thread = threading.Thread(target=self.fill, daemon=True)
            self.thread.start()
        cached = self.cache.get(index)
        return super().__getitem__(index) if cached is None else cached


class Keeps(Numbers):
    """The loop stores results on it."""

    def __init__(self):
        self.results = {}


class Staged(Numbers):
    """Counts its calls of set_epoch, and has a local name like that."""

    step = stage = 0

    def set_epoch(self, epoch):
        self.step += 1
        self.stage = epoch

    def __getitem__(self, index):
        step = index + self.stage
        return torch.tensor([float(step)])


looked_at = Numbers()
collate = functools.partial(collate_of, rank=rank)
made = [Transformed(), KnowsItsRank(), ReadsAhead(), Keeps(), Staged(), looked_at]
loaders = [
    headrace.torch.DataLoader(data, 4, shuffle=True, collate_fn=collate if isinstance(data, KnowsItsRank) else None)
    for data in made
]
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
            if isinstance(data, Keeps):
                data.results[len(data.results)] = loss.item()
    print(f"trained on {type(data).__name__}: {digest.hexdigest()}")
    print(f"on data hosts: {loader.made_elsewhere}")
weights = [each.tolist() for each in model.parameters()]
print("weights:", weights, flush=True)
