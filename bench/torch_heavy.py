"""Load a costly dataset in one of four ways, and measure the images per second. bench/torch_feed.py runs this script.

`torch_heavy.py feed|loader|ray|bare IMAGES WORKERS` prints images per second as JSON. With `--tell` it prints a line
for each batch: its time in monotonic seconds and the images so far. Feed servers run this script too.
"""

import json
import os
import sys
import time

import torch
from headrace.training.freed_memory import keep_freed_memory
from torch.nn import functional

SIZE, BATCH = 224, 16


class Heavy(torch.utils.data.Dataset):
    """Random pixels, normalised and blurred by an 11 × 11 Gaussian, in plain torch, as in ADR 21's sample code."""

    def __init__(self, count):
        self.count = count
        offsets = torch.arange(-5.0, 6.0)
        bell = torch.exp(-(offsets**2) / 8)
        self.kernel = (bell[:, None] * bell / bell.sum() ** 2).expand(3, 1, 11, 11)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.made(torch.randint(0, 256, (3, SIZE, SIZE))), index % 10

    def made(self, pixels):
        image = pixels.float()
        image = (image - image.mean((1, 2), keepdim=True)) / image.std((1, 2), keepdim=True)
        image = functional.conv2d(functional.pad(image[None], (5,) * 4, mode="reflect"), self.kernel, groups=3)[0]
        return (image * 64 + 128).clamp(0, 255).to(torch.uint8)


def rate(batches, warm_up=2):
    """Return images per second, after `warm_up` batches that do not count."""
    count, started = 0, 0.0
    for number, (images, _) in enumerate(batches):
        count += len(images) if number >= warm_up else 0
        started = time.perf_counter() if number == warm_up - 1 else started
    return count / (time.perf_counter() - started)


def tell(batches):
    """After each batch, print the time and the number of images so far."""
    count = 0
    for images, _ in batches:
        count += len(images)
        print(time.monotonic(), count, flush=True)


def feed(count, workers):
    import headrace.torch

    return headrace.torch.DataLoader(Heavy(count), BATCH, num_workers=workers)


def loader(count, workers):
    return torch.utils.data.DataLoader(Heavy(count), BATCH, num_workers=workers)


def bare(count, workers):
    """Yield batches made in this process and sent nowhere, to measure the rate that the processors alone reach."""
    keep_freed_memory()  # as feed servers do
    heavy = Heavy(count)
    for first in range(0, count, BATCH):
        yield torch.utils.data.default_collate([heavy[index] for index in range(first, first + BATCH)])


def ray_batches(count, workers):
    sys.path.append(os.environ["RAY_FOLDER"])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # for Ray's own processes
    import ray

    torch.set_num_threads(1)
    ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False

    def make(rows):
        torch.set_num_threads(1)
        heavy = Heavy(count)
        made = [heavy[int(index)] for index in rows["id"]]
        return {"images": torch.stack([image for image, _ in made]).numpy(), "labels": rows["id"] % 10}

    stream = ray.data.range(count, override_num_blocks=count // BATCH).map_batches(make, batch_size=BATCH, num_cpus=1)
    for batch in stream.iter_torch_batches(batch_size=BATCH, prefetch_batches=4):
        yield batch["images"], batch["labels"]


if __name__ == "__main__":
    ways = {"feed": feed, "loader": loader, "ray": ray_batches, "bare": bare}
    torch.set_num_threads(1)
    made = ways[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]))
    if "--tell" in sys.argv:
        tell(made)
    else:
        print(json.dumps({"images_per_s": rate(made)}))
