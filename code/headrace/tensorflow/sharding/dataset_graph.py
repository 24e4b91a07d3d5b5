"""A dataset as a tree of its transformations, read from the graph that TensorFlow would send to a worker.

Workers get this graph, not Python's dataset objects, so only the graph shows what they would make.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from headrace.errors import InputError
from headrace.tensorflow import compat
from headrace.tensorflow.sharding import graphdef

INFINITE, UNKNOWN_SIZE = tf.data.INFINITE_CARDINALITY, tf.data.UNKNOWN_CARDINALITY
_DATASET_OP = re.compile(r"Dataset(V\d)?$")
_NO_DATASETS = ("DatasetToGraph", "DatasetFromGraph")
_SINK = "_Retval"
_LIBRARIES = tuple(str(Path(str(module.__file__)).parent) + os.sep for module in (tf, keras, sys.modules["headrace"]))
_TOO_LONG = "the dataset chains too many transformations: interleave over a list instead of concatenating in a loop"


@dataclass(frozen=True, eq=False)
class Node:
    """A transformation of a dataset: its operation, and the transformations that it reads."""

    name: str
    op: str
    """TensorFlow's name of the operation without its version, such as `MapDataset` or `ShuffleDataset`."""
    inputs: tuple[Node, ...]
    definition: Any = field(repr=False)
    graph: DatasetGraph = field(repr=False)

    def value(self, argument: str) -> NDArray[Any]:
        """Return a constant argument's value. `argument` is its name in TensorFlow's operation."""
        return self.graph.constant(graphdef.arguments(self.definition)[argument][0])

    @cached_property
    def functions(self) -> list[str]:
        """The names of the functions that the transformation calls for its elements."""
        return list(graphdef.functions(self.definition).values())

    @property
    def operations(self) -> Iterator[Any]:
        """All operations in the transformation's functions, and in the functions that these call."""
        return (operation for name in self.functions for operation in self.graph.nodes_of(name))

    @cached_property
    def function_ops(self) -> set[str]:
        """The types of the operations in the transformation's functions and their callees, such as `RandomUniform`."""
        return {each.op for each in self.operations}

    @property
    def specs(self) -> tuple[tf.TensorSpec, ...]:
        """The specification of each component of an element, as a flat tuple."""
        given = self.definition.attr
        types = given["output_types" if "output_types" in given else "Toutput_types"]
        shapes = given["output_shapes"].list.shape
        pairs = zip(types.list.type, shapes, strict=True)
        return tuple(tf.TensorSpec(tf.TensorShape(shape), tf.as_dtype(dtype)) for dtype, shape in pairs)

    def subtree(self, ends: Collection[Node] = ()) -> Iterator[Node]:
        """Yield this node and its direct and indirect inputs in preorder. Do not go past the nodes in `ends`."""
        yield self
        for each in self.inputs if self not in ends else ():
            yield from each.subtree(ends)

    def on(self, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        """Apply this transformation to other inputs; return the result as a variant tensor of the current graph."""
        edges = [_full(edge) for edge in self.definition.input if self.graph.makes_dataset(edge)]
        return self.graph.build(self, dict(zip(edges, inputs, strict=True)), ordered=True)

    @cached_property
    def size(self) -> int:
        """The number of elements as TensorFlow knows it, or `INFINITE`, or `UNKNOWN_SIZE`."""
        return self.graph.sizes[self.name]

    def empty_elements(self, count: int) -> tf.data.Dataset:
        """Return a dataset of `count` empty elements of the same types, for use where only types and number matter.

        A component of type variant (a sparse tensor, a ragged tensor or a dataset) becomes an empty Optional.
        """

        def empty(spec: tf.TensorSpec) -> tf.Tensor:
            shape, is_variant = [size or 0 for size in spec.shape or []], spec.dtype == tf.variant
            return tf.fill(shape, tf.raw_ops.OptionalNone()) if is_variant else tf.zeros(shape, spec.dtype)

        return tf.data.Dataset.range(count).map(lambda _: tuple(map(empty, self.specs)))

    @property
    def place(self) -> str:
        """The transformation as messages name it, such as `train.py:12: map(decode)`."""
        named = (re.fullmatch(r"__inference_Dataset_\w+?_(.+)_\d+", each) for each in self.functions)
        function = next((f"({each[1]})" for each in named if each), "")
        return f"{self.graph.where}: {self.kind}{function}"

    @cached_property
    def kind(self) -> str:
        """The transformation's name as users write it, such as `map`, `take` or `from_tensor_slices`."""
        return _NAMES.get(self.op) or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", self.op.removesuffix("Dataset")).lower()


_NAMES = {
    "ParallelMapDataset": "map", "ParallelInterleaveDataset": "interleave", "LegacyParallelInterleaveDataset":
    "interleave", "ParallelBatchDataset": "batch", "TensorSliceDataset": "from_tensor_slices", "TensorDataset":
    "from_tensors", "DirectedInterleaveDataset": "choose_from_datasets or sample_from_datasets", "ZipDataset":
    "zip or enumerate", "ListDataset": "from_list", "RandomDataset": "Dataset.random", "CSVDataset": "CsvDataset",
}  # fmt: skip


def users_line() -> str:
    """Return the script's line that called headrace, as `file:line`: the innermost caller outside the libraries."""
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith((*_LIBRARIES, "<")):
            return f"{Path(frame.filename).name}:{frame.lineno}"
    return "?"


class DatasetGraph:
    """The graph of a dataset. `sink` is its last transformation.

    Args:
        where: place in the script, for messages; by default the line that called headrace.
    """

    def __init__(self, dataset: tf.data.Dataset, where: str = "") -> None:
        self.where = where or users_line()
        self._spec = dataset.element_spec
        self.definition = graphdef.graph_of(dataset)
        self._tensors: dict[str, tf.Tensor] = {}
        self.functions = {function.signature.name: function for function in self.definition.library.function}
        self._by_name = {node.name: node for node in self.definition.node}
        sink = next(node for node in self.definition.node if node.op == _SINK)
        try:
            self.sink = self._node(sink.input[0])
        except RecursionError:
            raise InputError(_TOO_LONG) from None

    def nodes_of(self, function: str) -> Iterator[Any]:
        """Iterate over the operations of a function and of all functions that it calls."""
        seen, waiting = set(), [function]
        while waiting:
            name = waiting.pop()
            if name in seen or name not in self.functions:
                continue
            seen.add(name)
            for node in self.functions[name].node_def:
                yield node
                waiting += [each.name for value in node.attr.values() for each in graphdef.called(value)]

    def constant(self, edge: str) -> NDArray[Any]:
        """Return the value of a constant. Raises `InputError` if another operation computes the value."""
        node = self.behind(edge)
        if node.op != "Const":
            raise InputError(f"an argument of the dataset is computed by {node.op}: give a constant instead")
        return np.asarray(tf.make_ndarray(node.attr["value"].tensor))

    def dataset(
        self, node: Node, new: Mapping[Node, tf.data.Dataset] | None = None, ordered: bool = False, spec: Any = None
    ) -> tf.data.Dataset:
        """Return the dataset whose last transformation is `node`. For `new` see `spliced`; for `ordered` see `build`.

        Args:
            spec: the specification of an element; without it elements are flat tuples.
        """
        replaced = {f"{each.name}:0": compat.variant_of(dataset) for each, dataset in (new or {}).items()}

        def build(*given: tf.Tensor) -> list[tf.Tensor]:
            return [self.build(node, dict(zip(replaced, given, strict=True)), ordered)]

        made = tf.compat.v1.wrap_function(build, [tf.TensorSpec([], tf.variant) for _ in replaced])
        variant = made(*replaced.values())[0]
        return tf.data.experimental.from_variant(variant, node.specs if spec is None else spec)

    def spliced(self, new: Mapping[Node, tf.data.Dataset]) -> tf.data.Dataset:
        """Replace transformations (the keys of `new`) by datasets (the values of `new`). Return the whole dataset."""
        return self.dataset(self.sink, new, spec=self._spec)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The size of each transformation's dataset, as in `Node.size`, by the transformation's name."""
        names = list(dict.fromkeys(node.name for node in self.sink.subtree()))
        whole = compat.GraphDef(versions=self.definition.versions, library=self.definition.library)
        nodes = [each for each in self.definition.node if each.op != _SINK]
        read = {edge.partition(":")[0] for each in nodes if _DATASET_OP.search(each.op) for edge in each.input}
        # Sizes do not depend on large constants that datasets read. A lookup table may import others, so they stay.
        whole.node.extend(graphdef.without_content(each) if each.name in read else each for each in nodes)

        def cardinalities() -> list[tf.Tensor]:
            variants = tf.graph_util.import_graph_def(whole, return_elements=[f"{name}:0" for name in names])
            return [tf.raw_ops.DatasetCardinality(input_dataset=each) for each in variants]

        with tf.init_scope():  # sizes are needed now, even while a function is traced
            return dict(zip(names, map(int, tf.compat.v1.wrap_function(cardinalities, [])()), strict=True))

    def build(self, node: Node, new: Mapping[str, tf.Tensor], ordered: bool = False) -> tf.Tensor:
        """Copy `node`, and the operations it depends on, into the graph being built. Return the node's variant tensor.

        A finite assert_cardinality is left out, since a part of the dataset has fewer elements than it asserts.

        Args:
            new: variant tensors of other datasets, by the names of the edges that they replace.
            ordered: keep the order of parallel calls that leave `deterministic` to the whole dataset's options.
        """
        part = compat.GraphDef(versions=self.definition.versions, library=self.definition.library)
        wanted, used, added = f"{node.name}:0", {}, set()
        if wanted in new:
            return new[wanted]
        waiting = [wanted]
        while waiting:
            name = waiting.pop().removeprefix("^").partition(":")[0]
            if name in added:
                continue
            added.add(name)
            definition = part.node.add()
            definition.CopyFrom(self._by_name[name])
            if ordered and "deterministic" in definition.attr and definition.attr["deterministic"].s == b"default":
                definition.attr["deterministic"].s = b"true"
            asserts_size = definition.op == "AssertCardinalityDataset"
            if asserts_size and int(self.constant(definition.input[1])) != INFINITE:
                graphdef.pass_on(definition)
            if definition.op == "CacheDatasetV2":
                added.add(graphdef.put_own_cache(part, definition))
            for edge in map(_full, definition.input):
                if edge in new:
                    used[edge] = new[edge]
                else:
                    waiting.append(edge)
        return tf.graph_util.import_graph_def(part, input_map=used, return_elements=[wanted])[0]

    def components(self, node: Node) -> list[tf.Tensor]:
        """Return a from_tensor_slices node's tensors. All calls return the same tensors, which saves memory."""
        constants = [self.behind(edge) for edge in graphdef.arguments(node.definition)["components"]]
        for each in constants:
            if each.name not in self._tensors:
                value = each.attr["value"].tensor
                dtype = tf.as_dtype(value.dtype)
                with tf.init_scope():
                    if dtype in (tf.string, tf.variant):  # make_ndarray reads no ragged or sparse rows, no packed text
                        self._tensors[each.name] = tf.io.parse_tensor(value.SerializeToString(), dtype)
                    else:  # copies a large array less often than parse_tensor
                        self._tensors[each.name] = tf.constant(tf.make_ndarray(value))
        return [self._tensors[each.name] for each in constants]

    def makes_dataset(self, edge: str) -> bool:
        if edge.startswith("^"):
            return False
        op = self.behind(edge).op
        return _DATASET_OP.search(op) is not None and op not in _NO_DATASETS

    def behind(self, edge: str) -> Any:
        """Return the node that makes an edge's value. Identity nodes, which only pass it on, are skipped."""
        node = self._by_name[edge.partition(":")[0]]
        return self.behind(node.input[0]) if node.op == "Identity" else node

    def _node(self, edge: str) -> Node:
        definition = self.behind(edge)
        inputs = tuple(self._node(each) for each in definition.input if self.makes_dataset(each))
        return Node(definition.name, re.sub(r"V\d$", "", definition.op), inputs, definition, self)


def _full(edge: str) -> str:
    return edge if ":" in edge else f"{edge}:0"
