"""Whether a batch sampler sets an attribute of its dataset with each batch, as the size of that batch's images.

Batches are made long after their order was drawn, and by other processes, which would see what was set last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils.data import Dataset

from headrace.errors import InputError
from headrace.torch.code_reads import names_read
from headrace.torch.dataset_code import held_by, is_the_scripts

_PLAIN = (bool, int, float, str, tuple, type(None))
_MOST_DATASETS = 5
"""One within the other."""


def refuse_sets(samplers: Sequence[Any], dataset: Any) -> Callable[[], None]:
    """To be called with each batch that they draw. What is set before the first one, for a whole epoch, may be.

    Raises:
        InputError: something that samples are made of is another with this batch than with the one before.
    """
    own = [each for each in samplers if is_the_scripts(type(each))]
    if not any(isinstance(held, Dataset) for each in own for held in held_by(each).values()):
        return _nothing
    read = names_read(dataset)
    first: dict[str, Any] = {}

    def look() -> None:
        now = {name: value for name, value in _settings(dataset) if name.rpartition(".")[2] in read}
        first.update({name: value for name, value in now.items() if name not in first})
        if changed := [name for name, value in now.items() if value != first[name]]:
            raise InputError(
                f"{type(own[0]).__name__} sets {', '.join(changed[:5])} of the dataset while it draws, and batches are "
                "made later: all would be made with what it sets last. Have it yield what it sets with each index, as "
                "[(index, size), …], which __getitem__ then gets"
            )

    return look


def _settings(dataset: Any) -> Iterator[tuple[str, Any]]:
    """Numbers and texts of a dataset, of those within, and of the script's objects that they hold."""
    for _ in range(_MOST_DATASETS):
        held = held_by(dataset)
        for name, value in held.items():
            if isinstance(value, _PLAIN):
                yield name, value
            elif is_the_scripts(type(value)) and not isinstance(value, Dataset):
                yield from ((f"{name}.{of}", each) for of, each in held_by(value).items() if isinstance(each, _PLAIN))
        within = [value for value in held.values() if isinstance(value, Dataset)]
        if len(within) != 1:
            return
        dataset = within[0]


def _nothing() -> None:
    pass
