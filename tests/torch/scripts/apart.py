"""Ranks that do not iterate alike over the loader that they share, or that have made other datasets."""

import argparse
import random

import headrace.torch
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import SubsetRandomSampler

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--how", default="")
args, _ = parser.parse_known_args()

headrace.torch.init()
rank = headrace.torch.rank()
numbers = list(range(40))
if args.how == "split":
    random.shuffle(numbers)
if args.how == "own part":
    numbers = numbers[rank :: headrace.torch.world_size()]
if args.how == "own loader" and rank == 0:
    headrace.torch.DataLoader([1.0, 2.0], 2, shard_by_rank=False)
chosen = SubsetRandomSampler(random.sample(numbers, 20)) if args.how == "sample" else None
loader = headrace.torch.DataLoader([float(number) for number in numbers], 2, shuffle=not chosen, sampler=chosen)
if args.how == "peek" and rank == 0:
    next(iter(loader))
model = DistributedDataParallel(torch.nn.Linear(1, 1))
held_out = numbers[rank:] if args.how == "validation" else numbers
held_out = headrace.torch.DataLoader([float(number) for number in held_out], 2)
for epoch in range(3):
    if epoch and args.how == "validation":
        print("a first epoch was trained on")
    if epoch and args.how == "alone" and rank == 0:
        list(held_out)
    for batch in loader:
        model(batch[:, None].float()).sum().backward()
    if args.how == "stop" and rank == 1:
        break
if args.how == "alone at the end" and rank == 0:
    list(held_out)
