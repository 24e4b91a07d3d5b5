"""Represent a dataset's transformations as a tree of stages, and follow a tensor's data from stage to stage."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from headrace.tensorflow import compat

Start = Callable[[Any], bool]
"""Function that takes a tensor. It returns True if `flow` must follow this tensor's data, as for a decoded JPEG."""
Consumer = tuple[str, Any]
"""Where a tensor is used: (type, first output) of an operation, or (kind, None) of a stage. The type is `crop` for an
operation that cuts out a part of an image."""
BATCHES = ("Batch", "ParallelBatch", "PaddedBatch", "DenseToRaggedBatch")
MAPS = ("Map", "ParallelMap")
PASSING = ("Options", "Prefetch", "Shuffle", "Repeat", "Take", "Skip", "Shard", "AssertCardinality", "IgnoreErrors")
"""Kinds of stages that pass elements on unchanged."""
PIXELS_THROUGH = {
    "Add", "AddV2", "AdjustContrastv2", "AdjustHue", "AdjustSaturation", "AvgPool", "Cast", "ClipByValue", "ConcatV2",
    "CropAndResize", "DepthwiseConv2dNative", "Div", "EnsureShape", "ExpandDims", "GatherV2", "Identity", "IdentityN",
    "ImageProjectiveTransformV3", "MaxPool", "Maximum", "Minimum", "MirrorPad", "Mul", "Pack", "Pad", "PadV2",
    "RealDiv", "Reshape", "ResizeArea", "ResizeBicubic", "ResizeBilinear", "ResizeNearestNeighbor", "ReverseV2",
    "Round", "ScaleAndTranslate", "Select", "SelectV2", "Slice", "Squeeze", "StopGradient", "StridedSlice", "Sub",
    "Transpose", *BATCHES, "Cache",
}  # fmt: skip
"""Operations and stages that make pixels from pixels. Like their inputs, the results need only one byte per value."""
_RANDOM = re.compile(r"Random|Rng|TruncatedNormal|Multinomial|Stateful(Uniform|StandardNormal)")
_CALLS = {
    "PartitionedCall": ("f",),
    "StatefulPartitionedCall": ("f",),
    "If": ("then_branch", "else_branch"),
    "StatelessIf": ("then_branch", "else_branch"),
}


@dataclass(frozen=True, eq=False)
class Stage:
    """One transformation of a dataset."""

    dataset: tf.data.Dataset
    kind: str
    """TensorFlow's class name without `Dataset` and version: `Map`, `ParallelMap`, `Shuffle`, …"""
    where: str
    """Line of the script that made the dataset, as `file:line`."""
    inputs: tuple[Stage, ...]

    @property
    def graphs(self) -> list[Any]:
        """The graphs of the stage's functions."""
        return [each.function.graph for each in compat.functions_of(self.dataset)]

    @property
    def function_name(self) -> str:
        """The name of the stage's function in the script, such as `lambda`; empty if the stage has no function."""
        for each in compat.functions_of(self.dataset):
            name = compat.name_of_function(each)
            return "lambda" if name == "<lambda>" else name
        return ""

    @property
    def in_code(self) -> str:
        """The name of the stage's function in a suggested fix; `…` for a lambda."""
        return "…" if self.function_name == "lambda" else self.function_name

    @property
    def spec(self) -> list[Any]:
        """The specification of each component of an element."""
        return list(tf.nest.flatten(self.dataset.element_spec))

    @property
    def ops(self) -> set[str]:
        """The types of all operations in this stage's functions and in the functions that these call."""
        found = set()
        for graph in self.graphs:
            definition = graph.as_graph_def()
            found |= {node.op for node in definition.node}
            found |= {node.op for function in definition.library.function for node in function.node_def}
        return found

    @property
    def is_random(self) -> bool:
        """True if the stage draws random numbers, so that each pass may give different elements."""
        return self.kind == "Random" or any(_RANDOM.search(op) for op in self.ops)

    def before(self) -> Iterator[Stage]:
        """Yield the stages before this one, nearest first."""
        for each in self.inputs:
            yield each
            yield from each.before()


class Pipeline:
    """The stages that lead to a dataset, source first."""

    def __init__(self, dataset: tf.data.Dataset, sources: Mapping[int, str]) -> None:
        self.stages: list[Stage] = []
        self._consumer: dict[int, Stage] = {}
        self._sources = sources
        self.end = self._add(dataset)

    def _add(self, dataset: tf.data.Dataset) -> Stage:
        inputs = tuple(self._add(each) for each in compat.inputs_of(dataset))
        kind = type(dataset).__name__.strip("_").replace("Dataset", "")
        stage = Stage(dataset, re.sub(r"V\d$", "", kind), self._sources.get(id(dataset), "?"), inputs)
        self._consumer.update({id(each): stage for each in inputs})
        self.stages.append(stage)
        return stage

    def after(self, stage: Stage) -> Iterator[Stage]:
        """Yield the stages after the given one, nearest first."""
        while id(stage) in self._consumer:
            stage = self._consumer[id(stage)]
            yield stage


def static(value: Any) -> int:
    """Return the value of a dataset's numeric argument; -1 if it is not known before the dataset runs."""
    known = None if value is None else tf.get_static_value(value)
    return -1 if known is None else int(known)


def batch_size(stage: Stage) -> int:
    """Return the size of the batches that a stage makes; -1 if it is not known."""
    return static(compat.argument_of(stage.dataset, "batch_size"))


def flow(stage: Stage, start: Start, through: Collection[str], consumers: list[Consumer]) -> list[bool]:
    """Mark chosen tensors and tensors made from them. Return which components of an element of `stage` are marked.

    Args:
        stage: last stage to follow.
        start: function that returns True for a chosen tensor, such as a decoded JPEG.
        through: types of operations and stages. Their results are marked if one of their inputs is marked.
        consumers: list to which `flow` adds operations and stages that use a marked tensor but are not in `through`.
    """
    given = [mark for each in stage.inputs for mark in flow(each, start, through, consumers)]
    if stage.kind in MAPS:
        return flow_in_graph(stage.graphs[0], given, start, through, consumers)
    if len(given) == len(stage.spec) and (
        stage.kind in (*PASSING, "Zip") or (stage.kind in (*BATCHES, "Cache") and stage.kind in through)
    ):
        return given
    if any(given):
        consumers.append((stage.kind, None))
    return [bool(start(spec)) for spec in stage.spec]


def flow_in_graph(
    graph: Any, given: Sequence[bool], start: Start, through: Collection[str], consumers: list[Consumer]
) -> list[bool]:
    """Mark a graph's tensors as `flow` does; return which outputs are marked. `given` tells which inputs are marked."""
    marks: dict[str, bool] = {tensor.name: mark for tensor, mark in zip(graph.inputs, given, strict=False)}
    for op in graph.get_operations():
        marked = [marks.get(tensor.name, False) for tensor in op.inputs]
        inner = called(graph, op)
        if op.type == "Placeholder":
            results = [marks.get(tensor.name, False) for tensor in op.outputs]
        elif inner and all(len(each.outputs) == len(op.outputs) for each in inner):
            operands = marked[1:] if op.type in ("If", "StatelessIf") else marked
            found = [flow_in_graph(each, operands, start, through, consumers) for each in inner]
            results = [any(each) for each in zip(*found, strict=True)]
        else:
            # The first input of these operations is the value. The other inputs are only positions, sizes or a shape.
            one = marked[:1] if op.type in ("GatherV2", "Slice", "StridedSlice", "Reshape") else marked
            results = [any(one) and op.type in through] * len(op.outputs)
            if any(marked) and op.type not in through:
                consumers.append(("crop" if marked[0] and _crops(op) else op.type, next(iter(op.outputs), None)))
        for tensor, mark in zip(op.outputs, results, strict=True):
            marks[tensor.name] = mark or bool(start(tensor))
    return [marks.get(tensor.name, False) for tensor in graph.outputs]


def called(graph: Any, op: Any) -> list[Any]:
    """Return the graphs of the functions that an operation calls."""
    return [compat.function_in(graph, op.get_attr(name).name) for name in _CALLS.get(op.type, ())]


def inner_maps(stage: Stage) -> list[Any]:
    """Return the graphs of the maps inside a stage's function, such as the function of an `interleave`."""
    return [
        compat.function_in(graph, op.get_attr("f").name)
        for graph in stage.graphs
        for op in graph.get_operations()
        if op.type in ("MapDataset", "ParallelMapDatasetV2")
    ]


def _crops(op: Any) -> bool:
    """Return whether an operation cuts out some of an image's rows or columns; doubtful cases count as no."""
    if op.type == "Slice":
        begin, size = (tf.get_static_value(op.inputs[place]) for place in (1, 2))
        whole = begin is not None and size is not None and not any(begin[:2]) and all(each == -1 for each in size[:2])
        return not whole
    if op.type != "StridedSlice" or any(
        op.get_attr(f"{each}_mask") for each in ("ellipsis", "new_axis", "shrink_axis")
    ):
        return False
    begin, strides = (tf.get_static_value(op.inputs[place]) for place in (1, 3))
    if strides is None or any(step != 1 for step in strides):
        return False
    for axis in range(min(2, len(strides))):
        ends = not op.get_attr("end_mask") >> axis & 1
        starts = not op.get_attr("begin_mask") >> axis & 1 and (begin is None or begin[axis] != 0)
        if starts or ends:
            return True
    return False
