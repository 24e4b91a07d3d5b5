"""Where a pipeline's processor time goes: what each stage adds to a sample.

Each stage is measured together with all that comes before it, without buffers; the differences are what the stages add.
So what a stage slows down in others counts as its own, and figures below a few per cent are noise.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

import tensorflow as tf

from headrace.lint.measure import without_buffers
from headrace.lint.pipeline import BATCHES, MAPS, PASSING, Pipeline, Stage, batch_size

BUDGET_S = 0.15
"""Of processor time for each measurement."""
MORE_TIMES = 2
"""What else runs on the machine only adds to processor time, so the least counts."""
WALL_S = 1.0
"""What waits, for files or for sleep, is measured on fewer elements."""
MOST_ELEMENTS = 4**10
WORTH_TELLING = 0.01
"""Of the whole; what adds less is told together."""
REST = "the rest"
NAMES = {
    "ParallelMap": "map", "ParallelBatch": "batch", "ParallelInterleave": "interleave", "Tensor": "from_tensors",
    "TensorSlice": "from_tensor_slices", "TFRecord": "TFRecordDataset", "TextLine": "TextLineDataset",
    "FixedLengthRecord": "FixedLengthRecordDataset",
}  # fmt: skip
"""What scripts call them."""


@dataclass(frozen=True)
class StageCost:
    """What one stage costs."""

    where: str
    """`file:line: transformation`; of the first one told, with all before it."""
    cpu_us: float
    """Microseconds of one processor for one sample."""
    share: float
    """Of the whole pipeline, 0 to 1."""


def stage_costs(pipeline: Pipeline) -> list[StageCost]:
    """The stages in the order of the pipeline, those that add nothing left out; none where nothing can be measured."""
    totals: list[tuple[Stage, float]] = []
    before = 0.0
    for stage, samples in _chain(pipeline):
        if totals and stage.kind in PASSING:
            continue
        before = max(_element_s(stage.dataset) / samples, before)  # a stage cannot take time back: that is noise
        totals.append((stage, before))
    if not before:
        return []
    costs, rest, so_far = [], 0.0, 0.0
    for place, (stage, total) in enumerate(totals):
        spent, so_far = total - so_far, total
        if place and spent < WORTH_TELLING * before:
            rest += spent
        else:
            earlier = " and what is before it" if not place and stage.inputs else ""
            costs.append(StageCost(_told(stage) + earlier, spent * 1e6, spent / before))
    return [*costs, StageCost(REST, rest * 1e6, rest / before)] if rest else costs


def _chain(pipeline: Pipeline) -> list[tuple[Stage, int]]:
    """The stages from which on it is known how many samples an element has, each with that number; source first.

    A sample is what the last stage's batches consist of, whether `batch` or a function made them.
    """
    found, stage = [pipeline.end], pipeline.end
    while len(stage.inputs) == 1 and stage.kind in (*MAPS, *PASSING, *BATCHES, "Cache"):
        stage = stage.inputs[0]
        found.append(stage)
    chain, samples = [], 1 if any(stage.kind in BATCHES for stage in found) else _length(pipeline.end)
    for stage in reversed(found):
        if stage.kind in BATCHES:
            samples *= max(batch_size(stage), 1)
        chain.append((stage, samples))
    return chain


def _told(stage: Stage) -> str:
    name = NAMES.get(stage.kind, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", stage.kind).lower())
    size = batch_size(stage)
    return f"{stage.where}: {name}({size if size > 0 else stage.function_name})"


def _length(stage: Stage) -> int:
    """The first dimension that all components of an element have in common; 1 where there is none."""
    shapes = [spec.shape for spec in stage.spec if isinstance(spec, tf.TensorSpec)]
    lengths = {shape[0] if shape.rank else None for shape in shapes} if len(shapes) == len(stage.spec) else {None}
    return lengths.pop() or 1 if len(lengths) == 1 else 1


def _element_s(dataset: tf.data.Dataset) -> float:
    """Processor seconds for one element of a dataset, with all that comes before it."""
    made = without_buffers(dataset).repeat()
    for element in made.take(1):
        there_already = tf.data.Dataset.from_tensors(element).repeat()
        return max(_drained_s(made) - _drained_s(there_already), 0.0)
    return 0.0


def _drained_s(endless: tf.data.Dataset) -> float:
    """Processor seconds for one element to be made, and thrown away by TensorFlow; no Python runs in it."""

    def first(count: int) -> tuple[float, float]:
        nothing = endless.take(count).filter(lambda *_: tf.constant(False))
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in nothing:
            pass
        return time.process_time() - cpu, time.perf_counter() - wall

    (started_s, waited_s), count, cpu_s, wall_s = map(min, zip(first(1), first(1), strict=True)), 1, 0.0, 0.0
    # Beyond the start: on a busy machine that alone may take longer than all the rest.
    while count == 1 or (cpu_s - started_s < BUDGET_S and count < MOST_ELEMENTS and wall_s - waited_s < WALL_S):
        count *= 4
        cpu_s, wall_s = first(count)
    if wall_s - waited_s < WALL_S:
        cpu_s = min(cpu_s, *(first(count)[0] for _ in range(MORE_TIMES)))
    return max(cpu_s - started_s, 0.0) / (count - 1)
