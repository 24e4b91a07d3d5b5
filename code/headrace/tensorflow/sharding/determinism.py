"""Tell whether a transformation gives the same elements in the same order each time, in every process."""

from __future__ import annotations

import re

from headrace.tensorflow import compat
from headrace.tensorflow.sharding import dataset_ops
from headrace.tensorflow.sharding.dataset_graph import Node

_DECIDING = ("FilterDataset", "UniqueDataset", "TakeWhileDataset", "ScanDataset", "GroupByWindowDataset",
             "DirectedInterleaveDataset", *dataset_ops.EXPANDING)  # fmt: skip
"""Transformations in which the values of elements decide which element comes next."""
CHANGING = "the random numbers differ in each pass"
RANDOM = "random numbers decide which element comes next"
_RANDOM_OP = re.compile(r"^(?!Stateless).*(Random|Rng|TruncatedNormal|Multinomial|StatefulUniform|StatefulStandard)")


def disorder(node: Node) -> str:
    """Return why a transformation gives different elements, or another order, each time. Return '' if it does not."""
    if node.op == "ShuffleDataset" and node.size != 1:  # list_files has a shuffle even for one file
        if node.definition.attr["reshuffle_each_iteration"].b:
            return "elements come in another order in each pass"
        return "" if node.value("seed") or node.value("seed2") else "elements are shuffled without a seed"
    if node.op == "RandomDataset":
        again = node.definition.op == "RandomDataset"  # version 2 may draw other numbers in each pass
        return "" if again and has_seed(node) else CHANGING
    if _is_loose(node):
        return "the elements' order is not deterministic"
    if node.op in dataset_ops.EXPANDING and any(op.startswith("ShuffleDataset") for op in node.function_ops):
        return "the transformation's function shuffles"
    drawing = (op for each in node.subtree() for op in each.function_ops if _RANDOM_OP.search(op))
    if node.op in _DECIDING and any(drawing):
        return RANDOM
    return ""


def has_seed(numbers: Node) -> bool:
    """Return whether a `Dataset.random` begins with the same numbers in all processes."""
    return bool(numbers.value("seed") or numbers.value("seed2"))


def _is_loose(node: Node) -> bool:
    """Return whether a transformation, or the dataset's options, allow parallel calls to change the order."""
    given = node.definition.attr
    if node.op == "OptionsDataset":
        options = compat.OptionsProto.FromString(given["serialized_options"].s)
        return options.WhichOneof("optional_deterministic") is not None and not options.deterministic
    return "deterministic" in given and given["deterministic"].s == b"false"
