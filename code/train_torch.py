"""Train a ResNet50 on images, one process for each GPU. Copy this file and edit it: your model, your data.

It also runs alone: `python code/train_torch.py`. In a job with data hosts, feed servers on them make the batches. They
run this script up to its first batch, to build the same datasets.
"""

import argparse
import os
from pathlib import Path

import headrace.torch
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel

# Arguments. Each hyperparameter of the job arrives as --name value.
parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--model", choices=["resnet50", "small_cnn"], default="resnet50")
parser.add_argument("--batch_size", type=int, default=32, help="per rank")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--steps_per_epoch", type=int, default=0, help="default: one pass over the dataset")
parser.add_argument("--learning_rate", type=float, default=0.001, help="multiplied by the number of ranks")
parser.add_argument("--image_size", type=int, default=32, help="height and width of the images, in pixels")
parser.add_argument("--channel", default=os.environ.get("SM_CHANNEL_TRAINING", ""), help="folder of digits.npz")
parser.add_argument("--num_workers", type=int, default=0, help="processes per rank, if the job has no data hosts")
parser.add_argument("--examples", type=int, default=2048, help="number of made-up images if there is no channel")
parser.add_argument("--log_every", type=int, default=10, help="steps between two log events")
args, _ = parser.parse_known_args()


class Digits(torch.utils.data.Dataset):
    """Handwritten digits. With `augmented`, they are shifted and made brighter or darker at random."""

    def __init__(self, folder, part, augmented):
        with np.load(Path(folder) / "digits.npz") as arrays:
            self.images, self.labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
        self.augmented = augmented

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = torch.from_numpy(self.images[index]).float().expand(1, 3, -1, -1)
        image = F.interpolate(image, size=args.image_size, mode="bilinear", antialias=True)[0]
        if self.augmented:
            shift = torch.randint(-args.image_size // 10, args.image_size // 10 + 1, (2,)).tolist()
            image = image.roll(shift, (1, 2)) * (0.8 + 0.4 * torch.rand(()))
        return image.clamp(0, 255).to(torch.uint8), int(self.labels[index])


class MadeUp(torch.utils.data.Dataset):
    """Blurred random pixels: images that are expensive to make, for measurements without a dataset."""

    def __len__(self):
        return args.examples

    def __getitem__(self, index):
        image = torch.randint(0, 256, (3, args.image_size, args.image_size)).float()
        image = (image - image.mean((1, 2), keepdim=True)) / image.std((1, 2), keepdim=True)
        offsets = torch.arange(-5.0, 6.0)
        bell = torch.exp(-(offsets**2) / 8)
        kernel = (bell[:, None] * bell / (bell.sum() ** 2)).expand(3, 1, 11, 11)
        image = F.conv2d(F.pad(image[None], (5,) * 4, mode="reflect"), kernel, groups=3)[0]
        return (image * 64 + 128).clamp(0, 255).to(torch.uint8), index % 10


def convolution(inputs, outputs, size, stride=1):
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs)


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions beside a shortcut (He, Zhang, Ren, Sun, 2015). The 3×3 has the stride."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        first, second = convolution(inputs, width, 1), convolution(width, width, 3, stride)
        self.path = nn.Sequential(
            *first, nn.ReLU(inplace=True), *second, nn.ReLU(inplace=True), *convolution(width, 4 * width, 1)
        )
        same = inputs == 4 * width and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*convolution(inputs, 4 * width, 1, stride))

    def forward(self, x):
        return torch.relu(self.path(x) + self.shortcut(x))


def resnet50(classes):
    layers, inputs = [*convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)], 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, stride if block == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def small_cnn(classes):
    layers = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, classes)]
    return nn.Sequential(*layers)


headrace.torch.init()
device = headrace.torch.device()
torch.manual_seed(0)
train = Digits(args.channel, "train", augmented=True) if args.channel else MadeUp()
held_out = Digits(args.channel, "test", augmented=False) if args.channel else None
if headrace.torch.rank() == 0:
    print(f"training on {args.channel or 'made-up images: this host has no channel named training'}")

# Loaders take torch's arguments. Data hosts, if any, make batches. device= copies a batch during the previous step.
options = {"num_workers": args.num_workers, "device": device}
loader = headrace.torch.DataLoader(train, args.batch_size, shuffle=True, drop_last=True, **options)
test_loader = headrace.torch.DataLoader(held_out, args.batch_size, **options) if args.channel else ()


def pixels(images):
    """Return floats between 0 and 1. This runs on the rank, so that a pixel crosses the network as one byte."""
    return (images.float() / 255).to(memory_format=torch.channels_last)


# Model: each rank holds all of it, and DistributedDataParallel averages the gradients.
on_gpu = device.type == "cuda"
half = on_gpu and torch.cuda.is_bf16_supported(including_emulation=False)
model = resnet50(classes=10) if args.model == "resnet50" else small_cnn(classes=10)
model = model.to(device, memory_format=torch.channels_last)
model = DistributedDataParallel(model, device_ids=[device] if on_gpu else None)
optimizer = torch.optim.Adam(model.parameters(), args.learning_rate * headrace.torch.world_size())
training = headrace.torch.Training(model, optimizer, loader, args.log_every, headrace.torch.Checkpoint())


def step(batch):
    images, labels = batch
    with torch.autocast(device.type, torch.bfloat16, enabled=half):
        scores = model(pixels(images))
        loss = F.cross_entropy(scores, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return len(labels), loss.detach() * len(labels), (scores.argmax(1) == labels).sum()


# Time some steps that never wait: they use made-up images, and all state is restored after them.
size = (args.batch_size, 3, args.image_size, args.image_size)
made_up = torch.randint(0, 256, size, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
training.measure_ideal_step(step, (made_up, torch.zeros(args.batch_size, dtype=torch.int64)))

for _epoch in training.epochs(args.epochs):
    seen, right, total = 0, 0, 0.0
    for batch in training.steps(args.steps_per_epoch):
        of_batch, loss, correct = step(batch)
        seen, right, total = seen + of_batch, right + correct, total + loss
    metrics = {"loss": total / max(seen, 1), "accuracy": right / max(seen, 1)}
    seen, right = 0, 0
    model.eval()
    for images, labels in test_loader:
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=half):
            right += (model.module(pixels(images)).argmax(1) == labels).sum()
        seen += len(labels)
        training.progress()
    if seen:
        metrics["val_accuracy"] = right / seen
    training.end_epoch(**metrics)

if headrace.torch.rank() == 0:
    model_dir = Path(os.environ.get("SM_MODEL_DIR", "model"))
    model_dir.mkdir(parents=True, exist_ok=True)
    torch.save({name: each.cpu() for name, each in model.module.state_dict().items()}, model_dir / "model.pt")
torch.distributed.destroy_process_group()
