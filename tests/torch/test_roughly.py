"""Numbers that hosts have computed are the same but for their last digits; other numbers are not."""

import dataclasses

import numpy as np
import pytest
import torch
from headrace.torch.fingerprint import fingerprint
from headrace.torch.sampling.rank_agreement import differing
from torch.utils.data import Dataset

from tests.torch.test_fingerprint import Table


def transform_of(mean):
    kind = type("Normalize", (), {"__module__": "torchvision.transforms", "__repr__": lambda _: f"Normalize({mean})"})
    return kind()


IMAGES = torch.rand(1000, 64, generator=torch.Generator().manual_seed(1))


def with_mean(mean):
    """What scripts compute of their images: numbers, arrays, a transform."""
    nothing = (IMAGES - mean).mean()
    return Table([float(mean.mean()), nothing, mean, mean.numpy(), (IMAGES - mean) / 0.3, transform_of(float(mean[0]))])


def test_sums_too_large_for_every_digit_and_what_rounding_leaves_are_the_same():
    for one, other in ((3.5e9, 3.5e9 + 256), (1.2e-7, -6e-8)):
        made_of = [{"made_of": fingerprint(Table(each))} for each in (one, other)]
        assert differing(*made_of) == ""


def test_numbers_that_were_added_up_in_another_order_are_the_same():
    one, other = IMAGES.mean(0), IMAGES.flip(0).cumsum(0)[-1] / len(IMAGES)
    standard = (IMAGES - IMAGES.mean()) / IMAGES.std()
    assert not torch.equal(one, other) and float(standard.mean()) != float(standard.flip(0).cumsum(0)[-1].mean() / 1000)
    assert differing({"made_of": fingerprint(with_mean(one))}, {"made_of": fingerprint(with_mean(other))}) == ""
    assert fingerprint(with_mean(one), exact=True) != fingerprint(with_mean(other), exact=True)


@dataclasses.dataclass
class Record:
    name: str

    def load(self):
        return self.name


class Turned(torch.nn.Module):
    def __init__(self, angle):
        super().__init__()
        self.angle = angle


PRICES = np.stack([np.linspace(1.0, 1e6, 500), np.arange(500) % 2 - 0.5], axis=1)
TIMES = 1.6e9 + np.arange(500) * 60.0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.1, 0.2), ([0.1, 0.2], [0.2, 0.1]), (1.0, 1), ([1.0], [1.0, 0.0]), (float("inf"), float("nan")),
        (torch.rand(50), torch.rand(50)), (np.arange(9.0), np.arange(9.0)[::-1]), (1 + 2j, 2 + 1j),
        (torch.ones(4, dtype=torch.bfloat16), torch.ones(4)), (IMAGES[:500], IMAGES[500:]),
        (transform_of(0.13), transform_of(0.31)), ([[0.5], 1], [[], 1]), ([1e6, 0.1], [1e6, 0.2]),
        (PRICES, PRICES * [1, -1]), (np.finfo(np.float64).max, -np.finfo(np.float64).max),
        ([float(np.finfo(np.float32).min), 1.0], [float(np.finfo(np.float32).min), 7.0]), (TIMES, TIMES[::-1]),
        (IMAGES.numpy() * 1e-13, IMAGES.flip(0).numpy() * 1e-13), (IMAGES, IMAGES * 2), (3.5e9, 3.6e9),
        ({1: Record("a")}, {1: Record("b")}), (Turned(90), Turned(180)),
        (np.ma.array([1.0, 2.0], mask=[0, 1]), np.ma.array([1.0, 2.0], mask=[1, 0])),
    ],
)  # fmt: skip
def test_other_numbers_are_not(one, other):
    made_of = [{"made_of": fingerprint(Table([each]))} for each in (one, other)]
    assert differing(*made_of) == "dataset.columns"
    many = [{f"name{number}": 0.5 for number in range(200)} | {"zz": each} for each in (one, other)]
    assert differing(*({"made_of": fingerprint(Named(each))} for each in many)) == "dataset.others"


class Named(Dataset):
    def __init__(self, attributes):
        vars(self).update(attributes)
