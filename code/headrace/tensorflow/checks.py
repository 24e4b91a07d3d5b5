"""What cannot be made on another host, or would be made wrong there: found in a dataset's graph, before training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from headrace.errors import InputError

PYTHON_OPS = {
    "PyFunc": "tf.py_function or tf.numpy_function",
    "PyFuncStateless": "tf.numpy_function",
    "EagerPyFunc": "tf.py_function",
    "GeneratorDataset": "Dataset.from_generator",
}
_BATCHES = ("BatchDatasetV2", "ParallelBatchDataset", "MapAndBatchDataset")


def refuse_misuse(dataset: tf.data.Dataset, sharding: str, needs_infinite: bool) -> None:
    """Raises `InputError` for a dataset that the service would fail on, hang on, or lose elements of.

    Args:
        sharding: `dynamic`, `file` or `off`.
        needs_infinite: coordinated reads and the cross-trainer cache do.
    """
    graph = dataset_graph(dataset)
    for op, function in nodes(graph):
        if op.op in PYTHON_OPS:
            where = f" in {function}" if function else ""
            raise InputError(
                f"the dataset runs Python of this process ({PYTHON_OPS[op.op]}{where}), which workers on other hosts "
                "do not have: use TensorFlow operations, or write the data to TFRecords first and read those"
            )
    infinite = int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
    if needs_infinite and not infinite:
        raise InputError(
            "coordinated reads and the cross-trainer cache need a dataset without end: add .repeat() before .batch()"
        )
    if sharding == "dynamic" and not infinite and _drops_remainder(graph):
        raise InputError(
            "batch(drop_remainder=True) of a finite dataset: each worker would drop its own remainder, up to (batch "
            "size - 1) × workers elements each epoch. Add .repeat() before .batch(), or batch without it"
        )


def dataset_graph(dataset: tf.data.Dataset) -> Any:
    """The dataset's GraphDef, as it would be sent to workers.

    Raises:
        InputError: it cannot be sent.
    """
    from tensorflow.core.framework import graph_pb2
    from tensorflow.python.data.ops.options import ExternalStatePolicy

    try:
        text = dataset._as_serialized_graph(external_state_policy=ExternalStatePolicy.IGNORE)
    except (tf.errors.OpError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(
            f"the dataset cannot be sent to workers ({reason}): what it captures must be tensors, variables or "
            "lookup tables; an iterator or a file handle of this process stays here"
        ) from error
    graph = graph_pb2.GraphDef()
    graph.ParseFromString(text.numpy())
    return graph


def nodes(graph: Any) -> Iterator[tuple[Any, str]]:
    """All nodes of a graph, each with the function that holds it; the dataset's own chain first."""
    for node in graph.node:
        yield node, ""
    for function in graph.library.function:
        for node in function.node_def:
            yield node, function.signature.name


def _drops_remainder(graph: Any) -> bool:
    truths = {
        node.name
        for node in graph.node
        if node.op == "Const" and node.attr["dtype"].type == tf.bool.as_datatype_enum
        and bool(tf.make_ndarray(node.attr["value"].tensor))
    }  # fmt: skip
    # `drop_remainder` is the only boolean among the inputs of these.
    return any(node.op in _BATCHES and any(name.split(":")[0] in truths for name in node.input) for node in graph.node)
