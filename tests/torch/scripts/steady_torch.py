"""Train on two ranks, for tests of faults, and record the samples of each rank. An epoch takes about a second."""

import argparse
import os
import time
from pathlib import Path

import headrace.torch
import torch
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--batch_size", type=int, default=8)
parser.add_argument("--ledger", default="")
parser.add_argument("--broken", type=int, default=-1, help="index of a sample that raises")
parser.add_argument("--hangs", type=int, default=-1, help="step after which rank 1 waits for ever")
parser.add_argument("--ends", type=int, default=-1, help="step after which rank 1 ends alone")
parser.add_argument("--late_on", default="", help="host whose feed servers do not come up")
args, _ = parser.parse_known_args()


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 640

    def __getitem__(self, index):
        if index == args.broken:
            raise ValueError(f"no number {index}")
        return torch.randn(8), index


headrace.torch.init()
torch.manual_seed(1)
while os.environ.get("HEADRACE_SERVER_NAME") and os.environ["SM_CURRENT_HOST"] == args.late_on:
    time.sleep(0.1)
model = DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
)
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
loader = headrace.torch.DataLoader(Numbers(), args.batch_size, shuffle=True)
training = headrace.torch.Training(model, optimizer, loader, 5, headrace.torch.Checkpoint())
rank = headrace.torch.rank()
steps = 0
for epoch in training.epochs(args.epochs):
    for numbers, indices in training.steps():
        if args.ledger:  # before gradients are averaged, so no rank ends a step that another has not written
            with open(Path(args.ledger) / f"rank{rank}", "a") as file:
                file.write(f"{epoch} {indices.tolist()}\n")
        loss = torch.nn.functional.cross_entropy(model(numbers), indices % 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.02)
        steps += 1
        while rank == 1 and steps == args.hangs:
            time.sleep(0.01)
        if rank == 1 and steps == args.ends:
            raise SystemExit
    training.end_epoch(loss=loss.detach())
weights = [each.double().sum().item() for each in model.parameters()]
print(f"weights of rank {rank}: {weights}", flush=True)
