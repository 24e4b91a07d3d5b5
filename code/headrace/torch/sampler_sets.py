"""Whether a batch sampler sets an attribute of its dataset with each batch, as the size of that batch's images.

Batches are made long after their order was drawn, and by other processes, which would see what was set last.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils.data import Dataset

from headrace.errors import InputError
from headrace.torch.dataset_code import (
    CALLED,
    SAMPLES,
    function_of,
    held_by,
    instructions,
    is_the_scripts,
    read_by_methods,
)

_PLAIN = (bool, int, float, str, tuple, type(None))
_MOST_DATASETS = 5
"""One within the other."""
_LONGEST = 16
_SETTING = ("__init__", "set")


def refuse_sets(samplers: Sequence[Any], dataset: Any) -> Callable[[], None]:
    """To be called with each batch that they draw. What is set before the first one, for a whole epoch, may be.

    Raises:
        InputError: something that samples are made of is another with this batch than with the one before.
    """
    own = [each for each in samplers if is_the_scripts(type(each))]
    if not any(isinstance(held, Dataset) for each in own for held in held_by(each).values()):
        return _nothing
    first: dict[str, str] = {}

    def look() -> None:
        now = dict(_settings(dataset))
        first.update({name: value for name, value in now.items() if name not in first})
        if changed := [name for name, value in now.items() if value != first[name]]:
            raise InputError(
                f"{type(own[0]).__name__} sets {', '.join(changed[:5])} of the dataset while it draws, and batches are "
                "made later: all would be made with what it sets last. Have it yield what it sets with each index, as "
                "[(index, size), …], which __getitem__ then gets"
            )

    return look


def _settings(dataset: Any) -> Iterator[tuple[str, str]]:
    """What samples are made of: numbers and texts of a dataset, of those within, and of the script's transforms."""
    for _ in range(_MOST_DATASETS):
        held = held_by(dataset)
        yield from _read_by(dataset, SAMPLES, "")
        for name, value in held.items():
            if is_the_scripts(type(value)) and not isinstance(value, Dataset):
                yield from _read_by(value, CALLED, f"{name}.")
        within = [value for value in held.values() if isinstance(value, Dataset)]
        if len(within) != 1:
            return
        dataset = within[0]


def _read_by(value: Any, methods: tuple[str, ...], path: str) -> Iterator[tuple[str, str]]:
    kind: Any = type(value)
    names = _settings_of(kind, methods)
    yield from (
        (path + name, repr(each))
        for name, each in held_by(value).items()
        if name in names and isinstance(each, _PLAIN) and (type(each) is not tuple or len(each) <= _LONGEST)
    )


@functools.cache
def _settings_of(kind: type, methods: tuple[str, ...]) -> frozenset[str]:
    """Attributes that these methods read, and that none writes but one called set…: no cursor, and no counter."""
    own = [(name, function_of(held)) for each in kind.__mro__ for name, held in vars(each).items()]
    steps = [(name, step) for name, each in own if each for step in instructions(each.__code__)]
    stored = {str(step.argval) for name, step in steps if step.opname == "STORE_ATTR" and not name.startswith(_SETTING)}
    return frozenset(read_by_methods(kind, methods) - stored)


def _nothing() -> None:
    pass
