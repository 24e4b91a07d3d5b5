"""Measure how soon loaders for PyTorch give an epoch's first batch, and how much memory a million samples take.

    .venv-torch/bin/python -m bench.torch_start [--repeats 5]

"torch": torch's own DataLoader with two workers. "local": headrace's, without data hosts. "feed": headrace's, with a
feed server of one worker per processor. All shuffle. Each runs in its own process, which prints its figures as JSON.
"""

import json
import os
import resource
import subprocess
import sys
import time

import torch

from bench import measure
from bench.torch_feed import environ, feed_server

WAYS = ("torch", "local", "feed")
MANY, FEW, BATCH, EPOCHS = 1_000_000, 3_200, 32, 6


class Numbers(torch.utils.data.Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.full([8], float(index)), index


def main(argv=None):
    repeats = measure.arguments(__doc__, argv).repeats
    found = {way: [] for way in WAYS}
    for _ in range(repeats):
        for way in WAYS:
            found[way].append(one(way))
    rows = [
        {"way": way} | {name: measure.median([each[name] for each in of_way]) for name in of_way[0]}
        for way, of_way in found.items()
    ]
    figures = {
        f"torch_{name}_{way}_vs_torch": measure.median(
            [ours[name] / theirs[name] for ours, theirs in zip(found[way], found["torch"], strict=True)]
        )
        for name in ("first_batch_ms", "next_epoch_ms")
        for way in ("local", "feed")
    }
    measure.leave("torch_start", figures, rows, repeats=repeats)


def one(way):
    """Run `load` for this way in a new process, and return the figures that it prints."""
    command = [sys.executable, "-m", "bench.torch_start", way]
    if way != "feed":
        done = subprocess.run(command, env=environ(), stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    else:
        with feed_server([__file__, "feed"]) as feeds:
            done = subprocess.run(
                command, env=environ() | feeds, stdout=subprocess.PIPE, text=True, check=True, timeout=300
            )
    return json.loads(done.stdout.splitlines()[-1])


def loader_of(way, count):
    if way == "torch":
        return torch.utils.data.DataLoader(Numbers(count), BATCH, shuffle=True, num_workers=2)
    import headrace.torch

    return headrace.torch.DataLoader(Numbers(count), BATCH, shuffle=True, num_workers=2)


def load(way):
    """Measure one of `WAYS` in this process, and print the figures as JSON."""
    few, many = loader_of(way, FEW), loader_of(way, MANY)
    gaps = []
    for _ in range(EPOCHS):
        began = time.perf_counter()
        for number, _batch in enumerate(few):
            if not number:
                gaps.append((time.perf_counter() - began) * 1000)
    before, began = resident_mb(), time.perf_counter()
    batches = iter(many)
    next(batches)
    first_ms = (time.perf_counter() - began) * 1000
    figures = {"first_batch_ms": first_ms, "grown_mb": resident_mb() - before}
    print(json.dumps(figures | {"next_epoch_ms": measure.median(gaps[1:])}), flush=True)
    os._exit(0)  # making a million samples would take too long


def resident_mb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in WAYS:
        load(sys.argv[1])
    else:
        main()
