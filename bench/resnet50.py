"""ResNet50 for the PyTorch benchmarks, the same model as in `code/train_torch.py`."""

import torch
from torch import nn


def convolution(inputs, outputs, size, stride=1):
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs)


class Bottleneck(nn.Module):
    """A residual block of 1×1, 3×3 and 1×1 convolutions (He, Zhang, Ren, Sun, 2015); the 3×3 one has the stride."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        first, second = convolution(inputs, width, 1), convolution(width, width, 3, stride)
        relu = nn.ReLU(inplace=True)
        self.path = nn.Sequential(*first, relu, *second, relu, *convolution(width, 4 * width, 1))
        same = inputs == 4 * width and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*convolution(inputs, 4 * width, 1, stride))

    def forward(self, x):
        return torch.relu(self.path(x) + self.shortcut(x))


def resnet50(classes):
    """Return the model, which has 25.6 million parameters with 1,000 classes. Input: float, N × 3 × height × width."""
    layers, inputs = [*convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)], 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, stride if block == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))
