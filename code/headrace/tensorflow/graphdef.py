"""A dataset's GraphDef: how it is had, and what tells it from another dataset's."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
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


def arguments(definition: Any) -> dict[str, list[str]]:
    """A node's inputs by the names of its operation's arguments."""
    from tensorflow.python.framework import op_def_registry

    found, edges = {}, [each for each in definition.input if not each.startswith("^")]
    for argument in op_def_registry.get(definition.op).input_arg:
        attribute = argument.number_attr or argument.type_list_attr
        count = 1
        if attribute:
            value = definition.attr[attribute]
            count = value.i if argument.number_attr else len(value.list.type)
        found[argument.name], edges = edges[:count], edges[count:]
    return found


class Fingerprints:
    """Numbers that another process has for the same dataset, or the same part of it, and hardly for another one.

    TensorFlow's own differ where processes have made other resources before, as a shuffle's counter is one; and
    functions are named in the order in which a process has made them. So each operation is told by its type, its
    attributes, and what comes in; a function by what it gives.
    """

    def __init__(self, graph: Any) -> None:
        self._nodes = {node.name: node for node in graph.node}
        self._library = {function.signature.name: function for function in graph.library.function}
        self._functions: dict[tuple[str, bool], bytes] = {}
        self._known: dict[tuple[str, bool], bytes] = {}

    def of(self, name: str, seeds: bool = True) -> int:
        """63 bits for the operation of that name; `seeds`: with those of shuffles and random numbers."""
        return int.from_bytes(self._node(name, seeds)[:8], "big") >> 1

    def _node(self, name: str, seeds: bool) -> bytes:
        if (name, seeds) not in self._known:
            self._known[name, seeds] = self._told(self._nodes[name], seeds, lambda edge: self._edge(edge, seeds))
        return self._known[name, seeds]

    def _edge(self, edge: str, seeds: bool) -> bytes:
        name, _, output = edge.lstrip("^").partition(":")
        return self._node(name, seeds) + (output or "0").encode()

    def _function(self, name: str, seeds: bool) -> bytes:
        if (name, seeds) not in self._functions:
            self._functions[name, seeds] = b"calls itself"
            function = self._library[name]
            nodes = {node.name: node for node in function.node_def}
            known = {each.name: f"argument {place}".encode() for place, each in enumerate(function.signature.input_arg)}

            def edge(of: str) -> bytes:
                name, _, output = of.lstrip("^").partition(":")
                if name not in known:
                    known[name] = self._told(nodes[name], seeds, edge)
                return known[name] + output.encode()

            gives = [edge(function.ret[each.name]) for each in function.signature.output_arg]
            also = sorted(edge(each) for each in function.control_ret.values())
            self._functions[name, seeds] = _digest([*gives, *also])
        return self._functions[name, seeds]

    def _told(self, node: Any, seeds: bool, edge: Callable[[str], bytes]) -> bytes:
        parts = [node.op.encode()]
        for name, value in sorted(node.attr.items()):
            kind = value.WhichOneof("value")
            if name.startswith("_") or name == "metadata" or (name in _SEEDS and not seeds):
                continue
            if kind == "func" or (kind == "list" and value.list.func):
                functions = [value.func] if kind == "func" else value.list.func
                parts += [self._function(each.name, seeds) for each in functions if each.name in self._library]
            elif kind == "tensor" and value.tensor.dtype in _OF_THIS_PROCESS:
                continue
            elif name == "memory_region_name":  # mapped arrays: a file in this job's folder, named by its content
                parts.append(Path(value.s.decode()).name.encode())
            else:
                parts.append(name.encode() + value.SerializeToString(deterministic=True))
        inputs = [each for each in node.input if not each.startswith("^")]
        if not seeds and node.op.startswith(_SEEDED_BY_INPUT):
            inputs = inputs[:_BEFORE_SEEDS]
        return _digest([*parts, b"inputs", *map(edge, inputs)])


_SEEDS = ("seed", "seed2")
_SEEDED_BY_INPUT, _BEFORE_SEEDS = ("ShuffleDataset", "ShuffleAndRepeatDataset"), 2
"""What comes in besides is the seeds, and their counter."""
_OF_THIS_PROCESS = (tf.resource.as_datatype_enum, tf.variant.as_datatype_enum)


def _digest(parts: Iterable[bytes]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()
