"""Datasets that are made of the same things are the same to a feed server; others are not."""

import numpy as np
import pytest
import torch
from headrace.torch.fingerprint import fingerprint
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, random_split


class Files(Dataset):
    def __init__(self, names, root="/data", transform=None):
        self.samples, self.root, self.transform = [(name, 1) for name in names], root, transform


class Table(Dataset):
    def __init__(self, columns):
        self.columns = columns


class Foreign:
    """As the datasets of other libraries are."""

    def __init__(self, rows):
        self.rows = rows

    def __getitem__(self, index):
        return self.rows[index]

    def __len__(self):
        return len(self.rows)


def split(seed):
    return random_split(range(100), [80, 20], torch.Generator().manual_seed(seed))[0]


SAME = {
    "tensors": lambda: TensorDataset(torch.arange(10), torch.ones(10, 3, dtype=torch.bfloat16)),
    "split": lambda: split(1),
    "joined": lambda: ConcatDataset([split(1), split(2)]),
    "files in another folder": iter([Files(["a", "b"]), Files(["a", "b"], "/elsewhere")]).__next__,
    "a transform": lambda: Files(["a"], transform=lambda x: x),
    "long": lambda: Files(str(number) for number in range(100_000)),
    "none of torch's": lambda: [1, 2, 3],
    "a dict": lambda: Table({"a": [1, 2], "b": {"c": 3}}),
    "not contiguous": lambda: TensorDataset(torch.arange(12).view(3, 4).t(), torch.zeros(4)),
}


@pytest.mark.parametrize("make", SAME.values(), ids=SAME)
def test_the_same_dataset_has_the_same_fingerprint(make):
    assert fingerprint(make()) == fingerprint(make())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (split(1), split(2)), (Subset(range(9), [1, 2]), Subset(range(9), [2, 1])),
        (TensorDataset(torch.zeros(5)), TensorDataset(torch.ones(5))),
        (Files(["a", "b"]), Files(["b", "a"])), (Files(["a"]), Files(["a", "b"])), ([1, 2], [2, 1]),
        (Table({"a": [1, 2]}), Table({"a": [2, 1]})),
        (Subset(Foreign([1, 2]), [0]), Subset(Foreign([2, 1]), [0])),
        (ConcatDataset([split(1), split(2)]), ConcatDataset([split(2), split(1)])), (np.arange(4), np.arange(1, 5)),
    ],
)  # fmt: skip
def test_another_dataset_has_another(one, other):
    assert fingerprint(one) != fingerprint(other)
