"""Compute the mean of the data with one loader, subtract it, and train with another loader."""

import argparse

import headrace.torch
import torch
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--num_workers", type=int, default=0)
args, _ = parser.parse_known_args()


class Numbers(torch.utils.data.Dataset):
    mean = torch.zeros(1)

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.tensor([float(index)]) - self.mean, index


headrace.torch.init()
rank, world = headrace.torch.rank(), headrace.torch.world_size()
print(f"a feed server: {headrace.torch.is_feed_server()}, rank {rank} of {world}", flush=True)
raw = headrace.torch.DataLoader(Numbers(), 4, num_workers=args.num_workers)
total = sum(batch.sum(0) for batch, _ in raw)
torch.distributed.all_reduce(total)

data = Numbers()
data.mean = total / 40
loader = headrace.torch.DataLoader(data, 4, shuffle=True, num_workers=args.num_workers)
model = DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
training = headrace.torch.Training(model, optimizer, loader, 5)
seen = 0
for _ in training.epochs(3):
    for x, index in training.steps():
        assert torch.equal(x[:, 0], index - 19.5), "samples were made without the mean"
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += len(x)
    training.end_epoch(loss=loss.detach())
print(f"training on data hosts: {loader.made_elsewhere}, mean {data.mean.item()}, 3 epochs of {seen // 3} samples")
late = headrace.torch.DataLoader(Numbers(), 4)
assert len(list(late)) == len(late)
print(f"later loader on data hosts: {late.made_elsewhere}", flush=True)
