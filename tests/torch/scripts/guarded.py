"""As many PyTorch scripts are: a `main` behind a guard, its own process group, DDP before the data, a split, a port."""

import argparse
import socket

import headrace.torch
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset, random_split


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="-1: none")
    parser.add_argument("--port", type=int, default=0)
    args, _ = parser.parse_known_args()
    dist.init_process_group(backend="gloo")
    if dist.get_rank() == 0 and args.port and not headrace.torch.is_feed_server():
        for_metrics = socket.create_server(("", args.port))  # noqa: F841
    if args.seed >= 0:
        torch.manual_seed(args.seed)
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(200, 4), torch.arange(200) % 2)
    train, held_out = random_split(data, [160, 40])
    train_loader = headrace.torch.DataLoader(train, batch_size=16, shuffle=True, num_workers=1)
    test_loader = headrace.torch.DataLoader(held_out, batch_size=16)
    seen = []
    for epoch in range(args.epochs):
        train_loader.set_epoch(epoch)
        for x, y in train_loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(len(x))
        with torch.no_grad():
            count = sum(len(x) for x, _ in test_loader)
        steps = len(seen) // (epoch + 1)
        print(f"rank {dist.get_rank()} epoch {epoch}: {steps} steps, {sum(seen)} samples, {count} held out", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
