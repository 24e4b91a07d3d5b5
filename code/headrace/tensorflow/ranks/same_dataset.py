"""Whether all ranks have made the same dataset, and what becomes of all where one could not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from headrace.errors import HeadraceError, InputError
from headrace.tensorflow.ranks import collectives
from headrace.tensorflow.sharding.dataset_graph import DatasetGraph, Node

MOST_TOLD = 200
"""Transformations that ranks compare, of one dataset."""
_ALIKE = (
    "do not shard by rank, sort lists of files, adapt() layers to unshuffled data, and give what shuffles in Python "
    "(…_dataset_from_directory, for one), or below a take or zip, the same seed=; "
    "a mapped function that draws in Python or NumPy draws once, on each rank something else: "
    "keras.utils.set_random_seed before, or draw in TensorFlow; or each rank its own: data.distribute(…, shared=False)"
)
Found = tuple[bool, list[tuple[str, int]]]
"""Whether a dataset has no end, and what must be the same on all ranks, with its place in the script."""


def told(graph: DatasetGraph) -> list[tuple[str, int]]:
    """All transformations, what is read before what reads it, so that the first difference is where it begins."""
    nodes = [graph.sink, *itertools.islice(dict.fromkeys(graph.sink.subtree()), 1, MOST_TOLD)]
    return [place(node, seeds=False) for node in reversed(nodes)]


def place(node: Node, seeds: bool = True) -> tuple[str, int]:
    return node.place, node.graph.fingerprints.of(node.name, seeds)


def all_endless(everyones: list[Found]) -> bool:
    """Whether all have no end. Raises `InputError` where ranks have different datasets."""
    for _, those in everyones:
        pairs = itertools.zip_longest(everyones[0][1], those, fillvalue=("?", 0))
        where = next((ours[0] for first, ours in pairs if first[1] != ours[1]), "")
        if where:
            raise InputError(
                f"the ranks have different datasets, but are to share one; the first difference is in {where}: {_ALIKE}"
            )
    return all(each[0] for each in everyones)


def together(do: Callable[[], Any]) -> list[Any]:
    """What each rank found, on all ranks. Raises `InputError` on all if one of them failed."""
    found: dict[str, Any] = {}
    unforeseen: Exception | None = None
    try:
        found = {"value": do()}
    except HeadraceError as error:
        found = {"error": str(error)}
    except Exception as error:  # whatever it is: who raises alone leaves the others in a collective
        text = error.message if isinstance(error, tf.errors.OpError) else str(error)
        found, unforeseen = {"error": f"{type(error).__name__}: {' '.join(text.split())[:500]}"}, error
    everyones = collectives.of_all_ranks(found, "headrace.parts")
    for each in everyones:
        if "error" in each:
            raise InputError(each["error"]) from unforeseen
    return [each["value"] for each in everyones]
