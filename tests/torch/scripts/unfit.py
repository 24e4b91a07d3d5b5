"""A training script that a feed server cannot run: it uses torch's own loader, starts processes, needs a GPU, or takes
no batch, as `--how` says."""

import argparse

import headrace.torch
import torch

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--how", default="")
args, _ = parser.parse_known_args()


def train(number):
    loader = headrace.torch.DataLoader([float(number) for number in range(100)], 2)
    if args.how == "another loader":
        loader = torch.utils.data.DataLoader(loader.dataset, loader.batch_size)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in [] if args.how == "no batch" else loader:
        model(batch[:, None].float()).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    assert args.how != "needs a GPU" or not headrace.torch.is_feed_server(), args.how
    if args.how == "spawn":
        torch.multiprocessing.spawn(train, (), nprocs=1)
    else:
        train(0)
