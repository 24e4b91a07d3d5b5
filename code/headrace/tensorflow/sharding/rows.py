"""Datasets that are the rows of tensors: from a dataset's own graph, or from files that are mapped into memory."""

from __future__ import annotations

import tensorflow as tf

from headrace.tensorflow.io.arrays import ARRAY, mapped
from headrace.tensorflow.sharding.dataset_graph import Node


def is_arrays(node: Node) -> bool:
    """Return whether a dataset is the rows of mapped arrays (`headrace.tensorflow.io.arrays`)."""
    return node.op == "FlatMapDataset" and "ImmutableConst" in node.function_ops


def is_rows(node: Node) -> bool:
    """Whether it is the rows of any tensors."""
    return node.op == "TensorSliceDataset" or is_arrays(node)


def array_rows(node: Node) -> int:
    """How many rows mapped arrays have."""
    every = (each for name in node.functions for each in node.graph.nodes_of(name))
    return next(each.attr["shape"].shape.dim[0].size for each in every if each.name == f"{ARRAY}0")


def tensors_of(node: Node) -> list[tf.Tensor]:
    """The tensors whose rows it has, within the graph that is being made."""
    if not is_arrays(node):
        return node.graph.tensors(node, "components")
    maps = {each.name: each.attr for name in node.functions for each in node.graph.nodes_of(name)}
    tensors = []
    for place in range(len(node.specs)):
        given = maps[f"{ARRAY}{place}"]
        shape = [dimension.size for dimension in given["shape"].shape.dim]
        path = given["memory_region_name"].s.decode()
        tensors.append(mapped(path, tf.as_dtype(given["dtype"].type), shape, place))
    return tensors


def dataset_of(node: Node, tensors: list[tf.Tensor]) -> tf.Tensor:
    """The variant of a dataset of other rows of the same kind."""
    return tf.raw_ops.TensorSliceDataset(components=tensors, output_shapes=[spec.shape for spec in node.specs])
