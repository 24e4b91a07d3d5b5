"""Trains a ResNet50 on images, one process for each GPU. The file to copy and edit: your model, your data.

It runs alone too (`python code/train_torch.py`). In a job with feed servers, those make the batches: they run this
script up to its first batch, to build the same datasets.
"""

import argparse
import os
from pathlib import Path

import headrace.torch
import numpy as np
import torch
from headrace.torch import models
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel

# Arguments: every hyperparameter of the job arrives as --name value; those of the launcher are not ours.
parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--model", choices=["resnet50", "small_cnn"], default="resnet50")
parser.add_argument("--batch_size", type=int, default=32, help="per rank")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--steps_per_epoch", type=int, default=0, help="default: the dataset's size")
parser.add_argument("--learning_rate", type=float, default=0.001, help="of one rank; scaled by their number")
parser.add_argument("--image_size", type=int, default=32, help="pixels; images of the channel are resized")
parser.add_argument("--channel", default=os.environ.get("SM_CHANNEL_TRAINING", ""), help="folder of digits.npz")
parser.add_argument("--num_workers", type=int, default=0, help="processes that make batches, as headrace.torch says")
parser.add_argument("--examples", type=int, default=2048, help="of made-up images, where there is no channel")
parser.add_argument("--log_every", type=int, default=10, help="steps between two log events")
args, _ = parser.parse_known_args()


class Digits(torch.utils.data.Dataset):
    """Handwritten digits, moved and made brighter or darker by chance."""

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
            move = torch.randint(-args.image_size // 10, args.image_size // 10 + 1, (2,)).tolist()
            image = image.roll(move, (1, 2)) * (0.8 + 0.4 * torch.rand(()))
        return image.clamp(0, 255).to(torch.uint8), int(self.labels[index])


class MadeUp(torch.utils.data.Dataset):
    """Without data: something heavy to preprocess, to measure with. Random pixels, blurred."""

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


headrace.torch.init()
device = headrace.torch.device()
torch.manual_seed(0)
train = Digits(args.channel, "train", augmented=True) if args.channel else MadeUp()
held_out = Digits(args.channel, "test", augmented=False) if args.channel else None
if headrace.torch.rank() == 0:
    print(f"training on {args.channel or 'made-up images: no channel named training is seen here'}")

# What differs is the loader: batches of uint8 pixels come from feed servers, where the job has any.
on_gpu = device.type == "cuda"
options = {"num_workers": args.num_workers, "pin_memory": on_gpu}
loader = headrace.torch.DataLoader(train, args.batch_size, shuffle=True, drop_last=True, **options)
test_loader = headrace.torch.DataLoader(held_out, args.batch_size, **options) if args.channel else ()
half = on_gpu and torch.cuda.is_bf16_supported(including_emulation=False)


def pixels(images):
    """Floats between 0 and 1, made on the trainer: a byte a pixel is what travels."""
    images = images.to(device, non_blocking=True)
    return (images.float() / 255).to(memory_format=torch.channels_last)


# Model: each rank holds all of it; DistributedDataParallel averages the gradients.
model = models.resnet50(classes=10) if args.model == "resnet50" else models.small_cnn(classes=10)
model = model.to(device, memory_format=torch.channels_last)
model = DistributedDataParallel(model, device_ids=[device] if on_gpu else None)
optimizer = torch.optim.Adam(model.parameters(), args.learning_rate * headrace.torch.world_size())
training = headrace.torch.Training(model, optimizer, loader, args.log_every, headrace.torch.Checkpoint())

for _epoch in training.epochs(args.epochs):
    seen, right, total = 0, 0, 0.0
    for images, labels in training.steps(args.steps_per_epoch):
        images, labels = pixels(images), labels.to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            scores = model(images)
            loss = F.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total, seen = total + loss.detach() * len(labels), seen + len(labels)
        right += (scores.argmax(1) == labels).sum()
    metrics = {"loss": total / max(seen, 1), "accuracy": right / max(seen, 1)}
    seen, right = 0, 0
    model.eval()
    for images, labels in test_loader:
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=half):
            right += (model.module(pixels(images)).argmax(1).cpu() == labels).sum()
        seen += len(labels)
        training.progress()
    training.end_epoch(**metrics, **({"val_accuracy": right / seen} if seen else {}))

if headrace.torch.rank() == 0:
    model_dir = Path(os.environ.get("SM_MODEL_DIR", "model"))
    model_dir.mkdir(parents=True, exist_ok=True)
    torch.save({name: each.cpu() for name, each in model.module.state_dict().items()}, model_dir / "model.pt")
torch.distributed.destroy_process_group()
