"""A reset of headrace's state, so that one test process can run several scripts."""

from headrace.torch import dataloader
from headrace.torch.feed import script


def forget_loaders():
    """Reset the state to that of a script that has made no loader and has not begun to train."""
    script.process.begun = script.process.is_server = False
    script.process.server = None
    script._counts.update({True: 0, False: 0})
    script._places.clear()
    script._loaders.clear()
    dataloader._say_once.cache_clear()
    script.print_once.cache_clear()
