"""A loader that something makes anew, as Accelerate's `prepare` does; processes or a port of the script's own."""

import argparse
import contextlib
import socket
import time

import headrace.torch
import torch

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--spawn", type=int, default=0)
parser.add_argument("--port", type=int, default=0)
parser.add_argument("--alone", type=int, default=0)
args, _ = parser.parse_known_args()


def train(number, as_given):
    loader = headrace.torch.DataLoader([float(number) for number in range(100)], 2)
    if not as_given:
        loader = torch.utils.data.DataLoader(loader.dataset, loader.batch_size)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in loader:
        model(batch[:, None].float()).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    assert not (args.alone and headrace.torch.is_feed_server()), "needs a GPU"
    if args.port:
        if not headrace.torch.is_feed_server():
            with contextlib.closing(socket.socket()) as probe:
                while probe.connect_ex(("127.0.0.1", args.port)):
                    time.sleep(0.05)  # until the feed server beside this rank has it
        for_metrics = socket.create_server(("", args.port))
    if args.spawn:
        torch.multiprocessing.spawn(train, (True,), nprocs=1)
    else:
        train(0, as_given=args.port or args.alone)
