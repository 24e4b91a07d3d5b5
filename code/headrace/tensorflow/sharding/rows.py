"""Datasets whose elements are rows of tensors, in the dataset's graph or in files that are mapped into memory."""

from __future__ import annotations

import tensorflow as tf

from headrace.tensorflow.io.arrays import ARRAY, mapped
from headrace.tensorflow.sharding.dataset_graph import Node


def is_arrays(node: Node) -> bool:
    """Return whether a dataset's elements are rows of mapped arrays (`headrace.tensorflow.io.arrays`)."""
    return node.op == "FlatMapDataset" and "ImmutableConst" in node.function_ops


def is_rows(node: Node) -> bool:
    """Return whether a dataset's elements are rows of any tensors."""
    return node.op == "TensorSliceDataset" or is_arrays(node)


def array_rows(node: Node) -> int:
    """Return the number of rows of mapped arrays."""
    return next(each.attr["shape"].shape.dim[0].size for each in node.operations if each.name == f"{ARRAY}0")


def tensors_of(node: Node) -> list[tf.Tensor]:
    """Return the tensors whose rows are a dataset's elements, within the graph that is being built."""
    if not is_arrays(node):
        return node.graph.tensors(node, "components")
    maps = {each.name: each.attr for each in node.operations}
    tensors = []
    for place in range(len(node.specs)):
        given = maps[f"{ARRAY}{place}"]
        shape = [dimension.size for dimension in given["shape"].shape.dim]
        path = given["memory_region_name"].s.decode()
        tensors.append(mapped(path, tf.as_dtype(given["dtype"].type), shape, place))
    return tensors


def dataset_of(node: Node, tensors: list[tf.Tensor]) -> tf.Tensor:
    """Return a copy of the dataset `node`, as a variant tensor, that reads its rows from `tensors`."""
    return tf.raw_ops.TensorSliceDataset(components=tensors, output_shapes=[spec.shape for spec in node.specs])
