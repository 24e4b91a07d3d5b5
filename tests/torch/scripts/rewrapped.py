"""A loader that something makes anew, as Accelerate's `prepare` does; or processes that the script starts itself."""

import argparse

import headrace.torch
import torch

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--spawn", type=int, default=0)
args, _ = parser.parse_known_args()


def train(number, spawned):
    loader = headrace.torch.DataLoader([float(number) for number in range(100)], 2)
    if not spawned:
        loader = torch.utils.data.DataLoader(loader.dataset, loader.batch_size)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in loader:
        model(batch[:, None].float()).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    if args.spawn:
        torch.multiprocessing.spawn(train, (True,), nprocs=1)
    else:
        train(0, False)
