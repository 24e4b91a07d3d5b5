"""What stages of a pipeline cost, measured: processor seconds, each measurement about a second at most.

Processor time of the whole process, since that is what data hosts are bought for: it is the same however many calls run
in parallel, and what else runs on the machine changes it little.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

import tensorflow as tf

from headrace.lint.pipeline import BATCHES, MAPS, PASSING, Pipeline, Stage, batch_size
from headrace.tensorflow.compat import functions_of
from headrace.tensorflow.sharding.graphdef import graph_of

BUDGET_S = 0.3
"""For a sample of elements."""
TIMED_S = 0.05
"""At least this much processor time beyond an iterator's start, which costs up to tens of milliseconds."""
MAX_ELEMENTS = 256
MAX_BATCHES = 64
MAX_PASSES = 4**6
MAX_SAMPLE_BYTES = 64 * 2**20
_WAITING = ("ShuffleDataset", "CacheDataset", "PrefetchDataset")
"""What would be filled first: a copy without them makes its first element as soon as any other."""


class Meter:
    """Measures one pipeline; every figure is None where it cannot be had."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._cost: dict[Stage, float] = {}
        self._samples: dict[Stage, tuple[tf.data.Dataset, int]] = {}

    @cached_property
    def batch_s(self) -> float:
        """Processor seconds for what `distribute` gets, an element; that is a batch."""
        return self.cost_of_all_to(self._pipeline.end)

    def cost_of_all_to(self, stage: Stage) -> float:
        """Processor seconds for one element of a stage, with all that comes before it."""
        elements = iter(without_buffers(stage.dataset))
        next(elements, None)  # opens files, fills what is read ahead
        count, started, cpu = 0, time.perf_counter(), time.process_time()
        for _ in elements:
            count += 1
            if count >= MAX_BATCHES or time.perf_counter() - started > 3 * BUDGET_S:
                break
        return (time.process_time() - cpu) / count if count else 0.0

    def batch_shapes(self) -> list[list[int]] | None:
        """The shapes of the first of what `distribute` gets."""
        for batch in without_buffers(self._pipeline.end.dataset).take(1):
            return [list(each.shape) for each in tf.nest.flatten(batch)]
        return None

    def share(self, stage: Stage) -> float | None:
        """A map's part of the pipeline's processor time, from 0 to 1."""
        per_batch, cost = self.elements_per_batch(stage), self.cost_of(stage)
        if per_batch is None or cost is None or not self.batch_s:
            return None
        return min(cost * per_batch / self.batch_s, 1.0)

    def cost_of(self, stage: Stage) -> float | None:
        """Processor seconds of a map's function for one element."""
        if not all(isinstance(spec, tf.TensorSpec) for spec in stage.inputs[0].spec):
            return None
        if stage not in self._cost:
            sample, count = self._sample(stage.inputs[0])
            with_map = _drain(sample, count, lambda elements: elements.map(_flat_call(stage))) if count else 0.0
            without = _drain(sample, count, lambda elements: elements) if count else 0.0
            self._cost[stage] = max(with_map - without, 0.0)
        return self._cost[stage]

    def _sample(self, stage: Stage) -> tuple[tf.data.Dataset, int]:
        if stage not in self._samples:
            self._samples[stage] = _sample(stage.dataset)
        return self._samples[stage]

    def elements_per_batch(self, stage: Stage) -> int | None:
        """How many of a stage's elements become one of `distribute`'s; None when that depends on the data."""
        sizes = []
        for each in self._pipeline.after(stage):
            if each.kind in BATCHES:
                sizes.append(batch_size(each))
            elif each.kind not in (*MAPS, *PASSING, "Cache", "Zip"):
                return None
        return math.prod(sizes) if all(size > 0 for size in sizes) else None

    def batching_speedup(self, stage: Stage, size: int) -> float | None:
        """How much faster a map and the batching after it are when the map is called on batches of `size`."""
        sample, count = self._sample(stage.inputs[0])
        if count < 1:
            return None
        count = math.ceil(count / size) * size
        sample = sample.repeat().take(count).cache()
        single = _drain(sample, count, lambda elements: elements.map(_flat_call(stage)).batch(size))
        batched = _drain(sample, count, lambda elements: elements.batch(size, True).map(vectorised(stage)))
        return single / batched if batched else None


def vectorised(stage: Stage) -> Callable[..., Any]:
    """A map's function for a batch of elements, as `tf.vectorized_map` makes it, with no loop left.

    Calling it raises ValueError where TensorFlow cannot.
    """
    call = _flat_call(stage)
    return lambda *batch: tf.vectorized_map(
        lambda flat: call(*flat), tuple(tf.nest.flatten(batch)), fallback_to_while_loop=False
    )


def without_buffers(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """A copy that makes no element ahead: without shuffle, cache and prefetch, and one call at a time."""
    graph = graph_of(dataset)
    bypass = {node.name: node.input[0] for node in graph.node if node.op.startswith(_WAITING)}
    one = graph.node.add(name="headrace_one_call", op="Const")
    one.attr["dtype"].type = tf.int64.as_datatype_enum
    one.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(1, tf.int64))
    for node in graph.node:
        for place, name in enumerate(node.input):
            while name in bypass:
                name = bypass[name]
            node.input[place] = name
        if node.op.startswith(("ParallelMapDatasetV2", "ParallelInterleaveDatasetV")):
            node.input[len(node.input) - 1] = one.name
    variant = tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString())
    return tf.data.experimental.from_variant(variant, dataset.element_spec)


def jpeg_crop_speedup(height: int, width: int) -> float:
    """How much faster a made-up JPEG of 375 × 500 pixels (ImageNet's mean) is decoded when only the crop is."""
    noise = tf.random.stateless_uniform([25, 33, 3], [0, 0], 0, 255)
    jpeg = tf.io.encode_jpeg(tf.cast(tf.image.resize(noise, [375, 500]), tf.uint8))
    height, width = min(height, 375), min(width, 500)
    window = [(375 - height) // 2, (500 - width) // 2, height, width]
    jpegs = tf.data.Dataset.from_tensors(jpeg).repeat(50)
    whole = _drain(jpegs, 50, lambda each: each.map(lambda data: tf.io.decode_jpeg(data, channels=3)))
    part = _drain(
        jpegs, 50, lambda each: each.map(lambda data: tf.image.decode_and_crop_jpeg(data, window, channels=3))
    )
    return whole / part if part else 1.0


def _flat_call(stage: Stage) -> Callable[..., Any]:
    function = functions_of(stage.dataset)[0].function
    return lambda *element: tuple(function(*tf.nest.flatten(element)))


def _sample(dataset: tf.data.Dataset) -> tuple[tf.data.Dataset, int]:
    """Some first elements, in memory, and their number."""
    source = without_buffers(dataset)
    count, size, started = 0, 0, time.perf_counter()
    for element in source:
        count += 1
        size += sum(_bytes(each) for each in tf.nest.flatten(element))
        if count >= MAX_ELEMENTS or size > MAX_SAMPLE_BYTES or time.perf_counter() - started > BUDGET_S:
            break
    kept = source.take(count).cache()
    for _ in kept:
        pass
    return kept, count


def _drain(sample: tf.data.Dataset, count: int, made: Callable[[tf.data.Dataset], tf.data.Dataset]) -> float:
    """Processor seconds for each of `count` elements of `sample` to become what `made` makes of them.

    That is the difference between many passes and one, which holds the start of the iterator too. No Python runs in it.
    """

    def passes(number: int) -> float:
        nothing = made(sample.repeat(number)).filter(lambda *_: tf.constant(False))
        best = math.inf
        for _ in range(2):
            cpu = time.process_time()
            for _ in nothing:
                pass
            best = min(best, time.process_time() - cpu)
        return best

    number, once = 1, passes(1)
    spent = once
    while spent - once < TIMED_S and number < MAX_PASSES:
        number *= 4
        spent = passes(number)
    return max(spent - once, 0.0) / ((number - 1) * count) if number > 1 else once / count


def _bytes(value: Any) -> int:
    if not isinstance(value, tf.Tensor) or not value.dtype.size:
        return 0
    return int(tf.size(value)) * int(value.dtype.size)
