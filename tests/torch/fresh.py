"""Lets one test process run several scripts, one after another."""

from headrace.torch import dataloader
from headrace.torch.feed import script


def forget_loaders():
    """Begin as a script that has made no loader yet and has not begun to train."""
    script._process.begun = script._process.trains = script._process.is_server = False
    script._process.server = None
    script._counts.update({"": 0, "own ": 0})
    script._places.clear()
    script._loaders.clear()
    dataloader._told.clear()
