"""Check that all ranks have the same dataset: compare the graphs' fingerprints. Raise one rank's error on all ranks."""

from __future__ import annotations

import hashlib
import itertools
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from headrace.errors import HeadraceError, InputError
from headrace.tensorflow.ranks import collectives
from headrace.tensorflow.sharding import graphdef
from headrace.tensorflow.sharding.dataset_graph import DatasetGraph, Node

MOST_TOLD = 200
"""Limit on the number of a dataset's transformations that ranks compare."""
_ALIKE = (
    "Make the same dataset on all ranks: do not shard by rank. Sort lists of files. Give a layer's adapt() unshuffled "
    "data. Give seed= to shuffles in Python (such as …_dataset_from_directory), and to a shuffle before a take or zip. "
    "In mapped functions, draw random numbers with TensorFlow, or begin the script with "
    "keras.utils.set_random_seed. To give each rank its own dataset: data.distribute(…, shared=False)"
)
Found = tuple[bool, list[tuple[str, int]]]
"""Whether a dataset is endless, and each transformation's line and fingerprint. All ranks need equal fingerprints."""
_OF_THIS_PROCESS = ("seed", "seed2", "metadata", "container", "shared_name", "debug_name")
"""Attributes that may differ in equal datasets: names of resources, and seeds, since each process may draw its own."""
_SEEDED_FROM = {"ShuffleDataset": 2, "ShuffleAndRepeatDataset": 2, "RandomDataset": 0}
"""For each operation with seeds: the index of the first input that is a seed or a seed generator."""
_BUILDING = b"comes in where it goes out"
_known: weakref.WeakKeyDictionary[DatasetGraph, dict[bool, _Fingerprints]] = weakref.WeakKeyDictionary()


def told(graph: DatasetGraph) -> list[tuple[str, int]]:
    """Return each transformation's script line and fingerprint, inputs first. Ranks look for the first that differs."""
    nodes = [graph.sink, *itertools.islice(dict.fromkeys(graph.sink.subtree()), 1, MOST_TOLD)]
    return [place(node, seeds=False) for node in reversed(nodes)]


def place(node: Node, seeds: bool = True) -> tuple[str, int]:
    return node.place, fingerprint(node, seeds)


def fingerprint(node: Node, seeds: bool = True) -> int:
    """Return a 63-bit hash of a transformation and all that it reads. Seeds of shuffles count only if `seeds`."""
    of_graph = _known.setdefault(node.graph, {})
    if seeds not in of_graph:
        of_graph[seeds] = _Fingerprints(node.graph.definition, seeds)
    return of_graph[seeds].of(node.name)


def all_endless(everyones: list[Found]) -> bool:
    """Return whether every rank's dataset has no end. Raise `InputError` if ranks have different datasets."""
    for _, those in everyones:
        pairs = itertools.zip_longest(everyones[0][1], those, fillvalue=("?", 0))
        where = next((ours[0] for first, ours in pairs if first[1] != ours[1]), "")
        if where:
            raise InputError(
                f"the ranks have different datasets, but must share one; the first difference is in {where}. {_ALIKE}"
            )
    return all(each[0] for each in everyones)


def together(do: Callable[[], Any], tell: Callable[[Any], Any] = lambda own: own) -> tuple[Any, list[Any]]:
    """Call `do` on every rank. Return this rank's result, and a list with `tell(result)` of each rank.

    The values of `tell` are sent as JSON. If `do` or `tell` fails on one rank, all ranks raise `InputError`.
    """
    found: dict[str, Any] = {}
    own: Any = None
    unforeseen: Exception | None = None
    try:
        own = do()
        found = {"value": tell(own)}
    except HeadraceError as error:
        found = {"error": str(error)}
    except Exception as error:  # any error: a rank that raises alone leaves the others waiting in a collective
        text = error.message if isinstance(error, tf.errors.OpError) else str(error)
        found, unforeseen = {"error": f"{type(error).__name__}: {' '.join(text.split())[:500]}"}, error
    everyones = collectives.of_all_ranks(found, "headrace.parts")
    for each in everyones:
        if "error" in each:
            raise InputError(each["error"]) from unforeseen
    return own, [each["value"] for each in everyones]


class _Fingerprints:
    """Fingerprints of the operations in a dataset's GraphDef.

    TensorFlow's own fingerprints include the names of functions and resources. These names hold a counter, so equal
    datasets can differ between processes. Here an operation is described by its type, attributes and inputs; a
    function, by its results; a lookup table, by its content. Values of variables are not compared: they are state, for
    example a random number generator's state.
    """

    def __init__(self, graph: Any, seeds: bool) -> None:
        self._seeds = seeds
        self._nodes = {"": {node.name: node for node in graph.node}}
        self._library = {function.signature.name: function for function in graph.library.function}
        self._functions: dict[str, bytes] = {}
        self._known: dict[str, bytes] = {}

    def of(self, name: str) -> int:
        self._tell(name, "", self._known)
        return int.from_bytes(self._known[name][:8], "big") >> 1

    def _function(self, name: str) -> bytes:
        if name not in self._functions:
            self._functions[name] = _BUILDING
            function = self._library[name]
            self._nodes[name] = {node.name: node for node in function.node_def}
            known = {each.name: f"argument {place}".encode() for place, each in enumerate(function.signature.input_arg)}
            gives = [function.ret[each.name] for each in function.signature.output_arg]
            for edge in (*gives, *function.control_ret.values()):
                self._tell(_node_of(edge), name, known)
            also = sorted(known[_node_of(edge)] for edge in function.control_ret.values())
            self._functions[name] = _digest([*(_told(edge, known) for edge in gives), *also])
        return self._functions[name]

    def _tell(self, name: str, function: str, known: dict[str, bytes]) -> None:
        """Add the digests of an operation and of all its inputs to `known`. Graphs are too deep for recursion."""
        waiting, begun, nodes = [name], set(), self._nodes[function]
        while waiting:
            each = waiting[-1]
            missing = [of for of in map(_node_of, nodes[each].input) if of not in known] if each not in known else []
            if missing and each not in begun:
                begun.add(each)
                waiting += missing
                continue
            waiting.pop()
            if each not in known:
                known.update(dict.fromkeys(missing, _BUILDING))  # a cycle: a loop of TensorFlow 1's control flow
                known[each] = self._described(nodes[each], function, known)

    def _described(self, node: Any, function: str, known: Mapping[str, bytes]) -> bytes:
        parts = [node.op.encode()]
        for name, value in sorted(node.attr.items()):
            if name.startswith("_") or name in _OF_THIS_PROCESS or (name == "token" and "PyFunc" in node.op):
                continue
            parts.append(name.encode())
            if functions := graphdef.called(value):
                parts += [self._function(each.name) for each in functions if each.name in self._library]
            elif value.WhichOneof("value") == "tensor":
                parts.append(_content(value.tensor))
            elif name == "memory_region_name":  # mapped arrays: a file in the job's folder, named by its content
                parts.append(Path(value.s.decode()).name.encode())
            else:
                parts.append(value.SerializeToString(deterministic=True))
        inputs = [each for each in node.input if not each.startswith("^")]
        controls = sorted(known[_node_of(each)] for each in node.input if each.startswith("^"))
        for op, first in _SEEDED_FROM.items():
            if node.op.startswith(op) and not self._seeds:
                inputs = inputs[:first]
        if node.op == "AssignVariableOp":
            inputs = inputs[:1]
        if node.op == "LookupTableImportV2":
            parts += _pairs([self._nodes[function][_node_of(each)] for each in inputs[1:]])
            inputs = inputs[:1]
        return _digest([*parts, b"inputs", *(_told(each, known) for each in inputs), b"after", *controls])


def _content(tensor: Any) -> bytes:
    is_resource = tensor.dtype == tf.resource.as_datatype_enum
    return b"resource" if is_resource else hashlib.sha256(tensor.SerializeToString(deterministic=True)).digest()


def _node_of(edge: str) -> str:
    return edge.lstrip("^").partition(":")[0]


def _told(edge: str, known: Mapping[str, bytes]) -> bytes:
    output = edge.partition(":")[2]
    return known[_node_of(edge)] + ("" if output in ("", "0") else output).encode()


def _pairs(constants: list[Any]) -> list[bytes]:
    """Return the keys and values of a lookup table in a fixed order, since a table's own order varies."""
    if any(each.op != "Const" for each in constants):
        return []
    tensors = [each.attr["value"].tensor for each in constants]
    keys, values = (tf.io.parse_tensor(each.SerializeToString(), each.dtype).numpy().tolist() for each in tensors)
    return sorted(repr(pair).encode() for pair in zip(keys, values, strict=True))


def _digest(parts: Iterable[bytes]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()
