"""An `IterableDataset` that takes a rank's share of what it reads, though the loader's parts are shares already.

In worker processes all that tells a rank (`RANK`, `torch.distributed`) says that there is only one. But a number that
the script has read before, into an attribute or a global, is past changing: the share would be taken twice.
"""

from __future__ import annotations

import re
import types
from typing import Any

from headrace.errors import InputError
from headrace.torch.dataset_writes import names_used
from headrace.torch.held import held

_RANK = re.compile(
    r"^((global|local|node|dist|dp|data|my|process|replica|worker|world)_?)?rank$|"
    r"^(proc|process|shard|replica|node|gpu)_?(id|idx|index)$", re.IGNORECASE,
)  # fmt: skip
_WORLD = re.compile(
    r"^world$|world_?size$|^ws$|^(n|num|n_|num_)(ranks|replicas|shards|procs|processes|nodes|gpus)$", re.IGNORECASE
)
_SHARE_THEMSELVES = ("streaming.base.", "litdata.")
"""Where the datasets of Mosaic and of Lightning are, whose workers wait for those of all other ranks."""


def refuse_shared_by_itself(dataset: Any) -> None:
    """Raises `InputError` for a library's dataset that shares among ranks."""
    for each in type(dataset).__mro__:
        if each.__module__.startswith(_SHARE_THEMSELVES):
            raise InputError(
                f"{each.__module__}.{each.__qualname__} shares its samples among all ranks by itself: read it with "
                "torch.utils.data.DataLoader or its own loader, and without data hosts (--no-is_hetero)"
            )


def refuse_rank_share(dataset: Any, rank: int, world: int) -> None:
    """Raises `InputError` where the dataset's code reads both this rank's number and that of all from outside."""
    numbers: dict[str, set[int]] = {}
    read: set[str] = set()
    for path, each in held(dataset):
        if isinstance(each, types.FunctionType):
            read |= names_used(each.__code__)
        elif type(each) is int:
            numbers.setdefault(path.rpartition(".")[2], set()).add(each)
    known = {name: each for name, each in numbers.items() if name in read}
    ranks = [name for name, each in known.items() if rank in each and _RANK.search(name.lstrip("_"))]
    worlds = [name for name, each in known.items() if world in each and _WORLD.search(name.lstrip("_"))]
    if ranks and worlds:
        raise InputError(
            f"{type(dataset).__name__} knows its rank ({ranks[0]}={rank}, {worlds[0]}={world}), and would take a share "
            "of what the loader has shared among the ranks already: take that share out of the dataset, read RANK and "
            "WORLD_SIZE within __iter__, or give shard_by_rank=False, with which the dataset alone shares"
        )
