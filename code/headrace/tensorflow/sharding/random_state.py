"""Renew the states of a dataset's random generators in each pass. Refuse a dataset that changes any other state."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from headrace.errors import InputError
from headrace.tensorflow.sharding import graphdef
from headrace.tensorflow.sharding.dataset_graph import DatasetGraph, Node
from headrace.tensorflow.sharding.refusals import AS_IT_IS

_WRITING = re.compile(
    r"Assign\w*Variable\w*|Resource(Scatter|StridedSliceAssign)\w*|LookupTable(Insert|Import|Remove)\w*"
)
_DRAWING = re.compile(r"Rng(ReadAndSkip|Skip)|Stateful(Standard|Truncated)?(Uniform|Normal|Random|Binomial)\w*")
"""Operations that draw from a tf.random.Generator and advance its state."""
_CALLS = {"PartitionedCall": 0, "StatefulPartitionedCall": 0, "While": 0, "StatelessWhile": 0, "If": 1,
          "StatelessIf": 1, "Case": 1, "StatelessCase": 1}  # fmt: skip
"""For each operation that calls functions: 1 if its first input only selects a function (`If`, `Case`), else 0."""
_SEED_OF_KERAS = [2]
"""The shape of the int64 variable that holds the state of a Keras layer's random numbers."""
_ANY = 1 << 62


def refuse_written(graph: DatasetGraph) -> None:
    """Raise `InputError` if a function writes a variable or table. Writing a random generator's state is allowed."""
    seeds = {edge for node in graph.sink.subtree() for edge in _seeds(node)}
    for node in graph.sink.subtree():
        for _, edge in _written(node):
            if edge not in seeds:
                raise InputError(
                    f"{node.place}: its function writes a variable or table. Every worker or rank would write its "
                    "own copy. For example, a counter would be wrong. Count with .enumerate(), keep a state with "
                    f".scan(…), or write before the dataset is made{AS_IT_IS}"
                )


def first_values(graph: DatasetGraph) -> list[Any]:
    """Return the constants that hold the initial states of the dataset's random generators."""
    seeds = {edge for node in graph.sink.subtree() for edge in _seeds(node)}
    firsts = [each for each in graph.definition.node if each.op == "AssignVariableOp"]
    return [graph.behind(each.input[1]) for each in firsts if graph.behind(each.input[0]).name in seeds]


def begin(seeds: Iterable[Any], which: str) -> None:
    """In each constant of `seeds`, replace the random state by a state computed from the old one and from `which`.

    `which` is the name of a pass. Equal states stay equal, so two layers with one seed treat image and mask alike.
    """
    for each in seeds:
        before = tf.make_ndarray(each.attr["value"].tensor)
        drawing = random.Random(f"{which} {before.tolist()}")
        values = [drawing.randrange(_ANY) for _ in range(before.size)]
        graphdef.put_constant(each, np.array(values, before.dtype).reshape(before.shape))


def _seeds(node: Node) -> Iterator[str]:
    """Yield the names of variables that hold only the state of a random generator."""
    by_drawing = {edge for op, edge in _written(node) if _DRAWING.fullmatch(op)}
    for op, edge in _written(node):
        if edge and (edge in by_drawing or (op == "AssignVariableOp" and _is_seed_of_keras(node.graph.behind(edge)))):
            yield edge


def _is_seed_of_keras(variable: Any) -> bool:
    shape = [each.size for each in variable.attr["shape"].shape.dim]
    return shape == _SEED_OF_KERAS and variable.attr["dtype"].type == tf.int64.as_datatype_enum


def _written(node: Node) -> Iterator[tuple[str, str]]:
    """Yield a pair for each write in a node's functions: operation type, and variable or table ('' if unknown)."""
    for name, function in graphdef.functions(node.definition).items():
        names = [node.graph.behind(each).name for each in graphdef.captured(node.definition, name)]
        yield from written_by(node.graph.functions, function, names, ())


def written_by(
    functions: Mapping[str, Any], name: str, captured: Sequence[str], above: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    """Yield a pair for each write in a function and its callees: operation type, and variable or table ('' if unknown).

    Args:
        functions: protocol buffers of functions, by name.
        captured: names of the variables and tables that are the function's last inputs.
        above: the functions that call this one.
    """
    function = functions.get(name)
    if function is None or name in above:
        return
    inputs = [each.name for each in function.signature.input_arg]
    known = dict(zip(reversed(inputs), reversed(captured), strict=False))
    nodes = {each.name: each for each in function.node_def}
    for node in function.node_def:
        if _WRITING.fullmatch(node.op) or _DRAWING.fullmatch(node.op):
            yield node.op, _origin(node.input[0], nodes, known)
        elif node.op in _CALLS:
            given = [_origin(each, nodes, known) for each in node.input if not each.startswith("^")][_CALLS[node.op] :]
            for each in (one for value in node.attr.values() for one in graphdef.called(value)):
                yield from written_by(functions, each.name, given, (*above, name))
        else:  # the node may make a dataset within a flat_map
            for attribute, called in graphdef.functions(node).items():
                given = [_origin(each, nodes, known) for each in graphdef.captured(node, attribute)]
                yield from written_by(functions, called, given, (*above, name))


def _origin(edge: str, nodes: Mapping[str, Any], known: Mapping[str, str]) -> str:
    name = edge.partition(":")[0]
    if name in known:
        return known[name]
    node = nodes.get(name)
    return _origin(node.input[0], nodes, known) if node is not None and node.op == "Identity" else ""
