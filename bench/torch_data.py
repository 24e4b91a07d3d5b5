"""Measure the image operations of bench/pipeline.py in PyTorch's DataLoader. Needs a Python with torch.

`torch_data.py images|batches BATCH SIZE SECONDS` prints images per second as JSON.
"""

import json
import math
import sys
import time

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

WORKERS = 2
ROTATION, ZOOM, SHIFT = 0.05, 0.2, 0.05


def augmented(pixels):
    """Dilate and blur images, then turn, scale, move and mirror them at random; `[n, 3, size, size]` uint8."""
    x = functional.max_pool2d(pixels.float(), 3, 1, 1)
    x = functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False).round()

    def draw(limit):
        return (2 * torch.rand(len(x)) - 1) * limit

    angle, scale = draw(ROTATION * 2 * math.pi), 1 + draw(ZOOM)
    mirror = torch.where(torch.rand(len(x)) < 0.5, -1.0, 1.0)
    cos, sin = torch.cos(angle) * scale, torch.sin(angle) * scale
    rows = [cos * mirror, -sin, draw(SHIFT) * 2, sin * mirror, cos, draw(SHIFT) * 2]
    grid = functional.affine_grid(torch.stack(rows, 1).view(-1, 2, 3), list(x.shape), align_corners=False)
    return (
        functional.grid_sample(x, grid, "bilinear", "border", align_corners=False).round().clamp(0, 255).to(torch.uint8)
    )


class Made(Dataset):
    """A dataset that makes each sample by augmenting the same random image, or the same batch of random images."""

    def __init__(self, shape, count):
        self._pixels, self._count = torch.randint(0, 256, shape, dtype=torch.uint8), count

    def __len__(self):
        return self._count

    def __getitem__(self, index):
        if self._pixels.dim() == 3:
            return augmented(self._pixels[None])[0].float() / 255
        return augmented(self._pixels)


def main(form, batch, size, seconds):
    endless = 1 << 40
    if form == "images":
        loader = DataLoader(Made((3, size, size), endless), batch, num_workers=WORKERS)
    else:
        loader = DataLoader(Made((batch, 3, size, size), endless), None, num_workers=WORKERS)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    steps, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        next(batches)
        steps += 1
    print(json.dumps({"images_per_s": steps * batch / (time.perf_counter() - started)}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
