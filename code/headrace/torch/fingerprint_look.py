"""What counts of a dataset, and how much of it is looked at."""

from __future__ import annotations

import dataclasses
import marshal
import multiprocessing.managers
import multiprocessing.sharedctypes
import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.torch.dataset_code import held_by, is_a_table, is_the_scripts, read_by_methods
from headrace.torch.dataset_writes import kept_by_properties, written_while_training

MOST_VALUES, LEAST_VALUES = 50_000, 4_000
"""Looked at, of one attribute: lists of lists multiply. The second is for what comes after `MOST_OF_ALL`."""
MOST_OF_ALL = 4 * MOST_VALUES
"""Looked at, of one dataset."""
MOST_BYTES = 64 << 20
"""Of arrays that are looked at whole, between two epochs of a process."""
MOST_WHOLE = 1 << 18
"""Of a list that is looked at whole between two epochs, as arrays are: a few labels of many may have been changed."""
_MOST_WITHIN: dict[type, int] = {tuple: 8, list: 8, dict: 16}
PLAIN = (bool, int, float, str, type(None))
"""What settings are made of."""
_NO_DATA = re.compile(
    "(^|_)(n?gpus?|n?cpus?|workers?|threads?|devices?|hosts?|ranks?|world|nodes?|dist|distributed|backend|port|"
    "lr|learning|epochs?|steps?|iters?|iterations?|momentum|decay|loss|best|patience|print|logs?|logger|logging|verbose|"
    "outputs?|out|save|saved|saving|results?|runs?|exp|experiments?|checkpoints?|ckpts?|resume|tensorboard|wandb|"
    "mlflow|timestamp|time|started|pid)(_|$)",
    re.IGNORECASE,
)
"""Settings of a host, the ranks, the optimizer or the output. They count if the code that makes samples names them."""


@dataclasses.dataclass
class Look:
    """How values are looked at, and how many more may be."""

    exact: bool
    settled: bool
    of_stream: bool
    """Parts of a stream follow from the generators that it holds, and from a share that a library has noted."""
    reads: frozenset[str]
    """Names that the code reads which makes samples."""
    left: int = MOST_OF_ALL
    bytes_left: int = MOST_BYTES
    above: frozenset[str] = frozenset()
    """Attributes that datasets write which hold this one."""
    late: bool = False
    """Samples have been made: globals may hold what was made."""

    def of_attribute(self) -> Look:
        """How the next attribute is looked at: one that takes all that it may leaves something for those after it."""
        return dataclasses.replace(self, left=min(max(self.left, LEAST_VALUES), MOST_VALUES))

    def after(self, attribute: Look) -> None:
        """This attribute has been looked at."""
        self.left -= self.of_attribute().left - attribute.left
        self.bytes_left = attribute.bytes_left

    def takes_whole(self, size: int) -> bool:
        """Whether an array of so many bytes may be looked at whole, and not in places."""
        fits = self.exact and size <= self.bytes_left
        self.bytes_left -= size if fits else 0
        return fits

    def list_whole(self, values: Any) -> bytes | None:
        """What a list is made of, if it may be looked at whole: of numbers and texts, or records of a few of them."""
        if not (self.exact and isinstance(values, (list, tuple)) and len(values) <= MOST_WHOLE):
            return None
        # A version of its format that does not tell who else holds a value.
        try:
            return marshal.dumps(values, 2) if _are_plain(values) else None
        except ValueError:  # of keys of other types
            return None

    def counts(self, values: Mapping[Any, Any], in_list: bool) -> dict[Any, Any]:
        """Of settings, what samples may be made of; a list of them is no settings, but data."""
        told = {name for name in values if isinstance(name, str) and _NO_DATA.search(name)} - self.reads
        return {name: each for name, each in values.items() if in_list or name not in told}

    def written(self, value: Any) -> frozenset[str]:
        """Attributes that do not count, since the object itself writes them."""
        kind: Any = type(value)
        derived = kept_by_properties(kind)
        return self.above | derived | written_while_training(kind) if self.settled else derived


def _are_plain(values: Sequence[Any]) -> bool:
    """Whether all are numbers and texts, or short tuples, lists and dicts of them, within each other once more."""
    waiting: list[Any] = list(values)
    for _ in range(3):
        kinds = set(map(type, waiting))
        if not kinds <= {*PLAIN, *_MOST_WITHIN}:
            return False
        records = [each for each in waiting if type(each) in _MOST_WITHIN]
        if any(len(each) > _MOST_WITHIN[type(each)] for each in records):
            return False
        waiting = [part for each in records for part in (each.values() if type(each) is dict else each)]
    return not waiting


def in_shared_memory(value: Any) -> Any:
    """What processes share by `multiprocessing`: of a Value, an Array, or a dict or list of its server; else None."""
    if isinstance(value, multiprocessing.managers.BaseProxy):
        return value._getvalue()  # type: ignore[no-untyped-call]
    if isinstance(value, multiprocessing.sharedctypes.SynchronizedArray):
        return value[:]
    return [value.value] if isinstance(value, multiprocessing.sharedctypes.Synchronized) else None


def plain_of(transform: Any) -> dict[str, Any]:
    """What a library's transform is set to, and those that it is made of."""
    return {
        name: each
        for name, each in held_by(transform).items()
        if isinstance(each, (*PLAIN, tuple)) or (name == "transforms" and isinstance(each, list))
    }


def around(function: types.FunctionType) -> Callable[[types.CellType], Any]:
    """What counts of what is around a function: of a trainer, that has the model and counts steps, what it names."""

    def held(cell: types.CellType) -> Any:
        value = cell.cell_contents
        whole = callable(value) or is_a_table(value) or not is_the_scripts(type(value)) or not held_by(value)
        names = {*function.__code__.co_names}
        names |= read_by_methods(type(value), names)
        return value if whole else {name: each for name, each in held_by(value).items() if name in names}

    return held
