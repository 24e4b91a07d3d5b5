"""A dataset's GraphDef: how it is had, and what tells it from another dataset's."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import tensorflow as tf

from headrace.errors import InputError


def graph_of(dataset: tf.data.Dataset) -> Any:
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


def fingerprint(graph: Any) -> int:
    """A number that another process has for the same dataset, and hardly for another one: 63 bits.

    TensorFlow's own differs where processes have made other resources before, as a shuffle's counter is one.
    """
    functions = (node for function in graph.library.function for node in function.node_def)
    digest = hashlib.sha256()
    for part in sorted(map(_without_names, (*graph.node, *functions))):  # names follow the order of making
        digest.update(part)
    return int.from_bytes(digest.digest()[:8], "big") >> 1


def _without_names(node: Any) -> bytes:
    """An operation with what it is given, but for the names of functions and of this process's resources."""
    parts = [node.op.encode()]
    for name, value in sorted(node.attr.items()):
        kind = value.WhichOneof("value")
        if kind in ("func", "list") or name.startswith("_") or name == "metadata":
            continue
        if kind == "tensor" and value.tensor.dtype in (tf.resource.as_datatype_enum, tf.variant.as_datatype_enum):
            continue
        if name == "memory_region_name":  # mapped arrays: a file in this job's folder, named by its content
            parts.append(Path(value.s.decode()).name.encode())
            continue
        parts.append(name.encode() + value.SerializeToString(deterministic=True))
    return b"|".join(parts)
