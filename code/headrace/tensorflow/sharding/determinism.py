"""Tell whether a transformation gives the same elements in the same order each time, in every process."""

from __future__ import annotations

import re

from headrace.tensorflow import compat
from headrace.tensorflow.sharding.dataset_graph import Node
from headrace.tensorflow.sharding.dataset_ops import EXPANDING

_DECIDING = ("FilterDataset", "UniqueDataset", "TakeWhileDataset", "ScanDataset", "GroupByWindowDataset",
             "DirectedInterleaveDataset", *EXPANDING)  # fmt: skip
"""Transformations in which the values of elements decide which element comes next."""
ANEW = "its numbers differ in each pass"
RANDOM = "it depends on random numbers"
_RANDOM_OP = re.compile(r"^(?!Stateless).*(Random|Rng|TruncatedNormal|Multinomial|StatefulUniform|StatefulStandard)")


def disorder(node: Node) -> str:
    """Return why a transformation gives different elements, or another order, each time. Return '' if it does not."""
    if node.op == "ShuffleDataset" and node.size != 1:  # list_files shuffles one file too
        if node.attribute("reshuffle_each_iteration").b:
            return "elements come in another order in each pass"
        return "" if node.value("seed") or node.value("seed2") else "elements are shuffled without a seed"
    if node.op == "RandomDataset":
        return "" if draws_the_same(node) else ANEW
    if _is_loose(node) or (node.op == "OptionsDataset" and _options_are_loose(node)):
        return "the elements' order is not deterministic"
    if node.op in EXPANDING and any(op.startswith("ShuffleDataset") for op in node.function_ops):
        return "its function shuffles"
    if node.op in _DECIDING and any(_is_random(each) for each in node.subtree()):
        return RANDOM
    return ""


def draws_the_same(numbers: Node) -> bool:
    """Return whether a `Dataset.random` has a seed, its own or the global one, and repeats its numbers in each pass."""
    again = numbers.definition.op == "RandomDataset"  # version 2 may draw other numbers each time
    return again and has_seed(numbers)


def has_seed(numbers: Node) -> bool:
    """Return whether a `Dataset.random` begins with the same numbers in all processes."""
    return bool(numbers.value("seed") or numbers.value("seed2"))


def _is_random(node: Node) -> bool:
    """Return whether a node's functions draw random numbers that differ from process to process."""
    return any(_RANDOM_OP.search(op) for op in node.function_ops)


def _is_loose(node: Node) -> bool:
    given = node.definition.attr
    return "deterministic" in given and given["deterministic"].s == b"false"


def _options_are_loose(node: Node) -> bool:
    options = compat.OptionsProto.FromString(node.attribute("serialized_options").s)
    return options.WhichOneof("optional_deterministic") is not None and not options.deterministic
