"""Contexts around the training loop, such as autocast or no_grad, do not affect the batches that servers make."""

import pytest
import torch
from torch.utils.data import Dataset


class Multiplies(Dataset):
    """A dataset of products and gradients. Autocast changes the values. Disabled gradients cause an error."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        x = torch.full((8, 8), 1.0 + index / 1000, requires_grad=True)
        (gradient,) = torch.autograd.grad((x @ x).sum(), x)
        return (x @ x).detach(), gradient


@pytest.mark.parametrize("block", [lambda: torch.autocast("cpu", torch.bfloat16), torch.no_grad, torch.inference_mode])
def test_a_block_around_the_first_batch_is_not_the_feeds(feeds, block):
    with block():
        address = feeds.serve(1, Multiplies(), 4)
        next(iter(feeds.loader([address], Multiplies(), 4)))
    (batch,) = list(feeds.loader([address], Multiplies(), 4))
    (plain,) = list(torch.utils.data.DataLoader(Multiplies(), 4))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(batch, plain, strict=True))
