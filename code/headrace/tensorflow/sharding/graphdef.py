"""Read and edit the operations of a dataset's GraphDef."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from headrace.errors import InputError
from headrace.tensorflow import compat

LARGE_BYTES = 64 << 10
"""Size in bytes above which a constant counts as large."""


def graph_of(dataset: tf.data.Dataset) -> Any:
    """Return the dataset's GraphDef, as it would be sent to workers.

    Raises:
        InputError: the dataset cannot be sent.
    """
    try:
        text = compat.graph_of(dataset)
    except (tf.errors.OpError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(
            f"the dataset cannot be copied out of this process ({reason}). Let its functions capture only tensors, "
            "variables and lookup tables, and no iterator or file handle. Pass large arrays by data.from_arrays. "
            "Call prefetch_to_device and copy_to_device after data.distribute"
        ) from error
    graph = compat.GraphDef()
    graph.ParseFromString(text)
    return graph


def arguments(definition: Any) -> dict[str, list[str]]:
    """Return the names of a node's input edges as a dict. Its keys are the names of the operation's arguments."""
    found, edges = {}, [each for each in definition.input if not each.startswith("^")]
    for argument in compat.arguments_of(definition.op):
        attribute = argument.number_attr or argument.type_list_attr
        count = 1
        if attribute:
            value = definition.attr[attribute]
            count = value.i if argument.number_attr else len(value.list.type)
        found[argument.name], edges = edges[:count], edges[count:]
    return found


def captured(definition: Any, attribute: str) -> list[str]:
    """Return the names of the tensors (input edges) that a node's function captures. `attribute` holds the function."""
    edges = arguments(definition)
    return edges.get(f"{attribute}_other_arguments", edges.get("other_arguments", []))


def functions(definition: Any) -> dict[str, str]:
    """Return the names of a node's functions as a dict. Its keys are the attributes that hold the functions."""
    given = {name: each.func.name for name, each in definition.attr.items() if each.WhichOneof("value") == "func"}
    return {name: function for name, function in given.items() if function}


def called(attribute: Any) -> list[Any]:
    """Return the functions that a node's attribute names, as protocol buffers: one, or several for a switch_case."""
    return [attribute.func] if attribute.WhichOneof("value") == "func" else list(attribute.list.func)


def put_constant(node: Any, values: Any) -> None:
    """Replace a node by a constant of the same name."""
    node.op = "Const"
    node.input[:] = []
    node.attr.clear()
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(values))
    node.attr["dtype"].type = node.attr["value"].tensor.dtype


def without_content(node: Any) -> Any:
    """Return a copy of a large constant: same type, same shape, no values. Return any other node itself."""
    if node.op != "Const" or node.ByteSize() <= LARGE_BYTES:
        return node
    copy, value = type(node)(name=node.name, op=node.op), node.attr["value"].tensor
    copy.attr["dtype"].CopyFrom(node.attr["dtype"])
    copy.attr["value"].tensor.CopyFrom(type(value)(dtype=value.dtype, tensor_shape=value.tensor_shape))
    return copy


def pass_on(node: Any) -> None:
    """Replace a transformation by one that returns its input unchanged."""
    node.op = "Identity"
    del node.input[1:]
    node.attr.clear()
    node.attr["T"].type = tf.variant.as_datatype_enum


def put_own_cache(graph: Any, node: Any) -> str:
    """Give a copied `cache` node a memory of its own, so that it neither reads nor fills the original's cache.

    Returns:
        The name of the node that is added to the graph.
    """
    own = graph.node.add(name=f"{node.name}_own", op="DummyMemoryCache")  # a dummy, for which TensorFlow makes a cache
    node.input[2] = own.name
    return str(own.name)
