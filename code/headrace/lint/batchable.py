"""Find out whether a map's function could take a whole batch instead of one element."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from headrace.lint.findings import BETWEEN, is_fixed, only_regroups
from headrace.lint.pipeline import MAPS, PIXELS_THROUGH, Pipeline, Stage, batch_size
from headrace.tensorflow.compat import functions_of

_NOT_BATCHABLE = re.compile(
    r"Decode|Encode|Parse|ReadFile|Stateless(Random|Truncated|Multinomial|Parameter)|String|Regex|While|TensorList"
    r"|TensorArray|PyFunc|Dataset|Lookup|Resource|ReadVariable|VarHandle|Assign|Assert|Print|Rng"
)
_BATCHED_OPS = {"ResizeBilinear", "ResizeBicubic", "ResizeArea", "ResizeNearestNeighbor", "ImageProjectiveTransformV3"}
_SIMPLE_OPS = {*PIXELS_THROUGH, "Placeholder", "Const", "NoOp", "Shape", "RandomUniform", "Sin", "Cos", "Neg", "Less",
               "Greater", "ZerosLike", "OnesLike", "Fill"}  # fmt: skip


def batch_size_after(pipeline: Pipeline, stage: Stage) -> int:
    """Return the size of the next `batch` after a map; 0 if there is no `batch` that could be moved before the map."""
    between: list[Stage] = []
    for each in pipeline.after(stage):
        if each.kind in ("Batch", "ParallelBatch"):
            movable = all(other.kind in BETWEEN or how_batchable(other, 2) for other in between)
            return batch_size(each) if movable else 0
        if each.kind not in (*BETWEEN, *MAPS):
            return 0
        between.append(each)
    return 0


def how_batchable(stage: Stage, size: int) -> str:
    """Return how a map's function could take batches of `size` elements; empty if it could not.

    `native`: unchanged, since all the function's operations take batches. `vectorised`: through `tf.vectorized_map`.
    """
    if any(_NOT_BATCHABLE.search(op) for op in stage.ops) or only_regroups(stage):
        return ""
    if not all(is_fixed(spec) and spec.dtype != tf.string for spec in [*stage.inputs[0].spec, *stage.spec]):
        return ""
    specs = [tf.TensorSpec([size, *spec.shape], spec.dtype) for spec in stage.inputs[0].spec]
    logger, level = tf.get_logger(), tf.get_logger().level
    logger.setLevel("CRITICAL")  # TensorFlow writes at length about what it cannot vectorise
    try:
        tf.function(_vectorised(stage)).get_concrete_function(*specs)
    except (ValueError, TypeError, NotImplementedError, tf.errors.OpError):
        return "native" if stage.ops & _BATCHED_OPS and stage.ops <= _SIMPLE_OPS | _BATCHED_OPS else ""
    finally:
        logger.setLevel(level)
    return "vectorised"


def _vectorised(stage: Stage) -> Callable[..., Any]:
    """Return a map's function, made to take batches. A call raises ValueError if TensorFlow cannot vectorise it."""
    function = functions_of(stage.dataset)[0].function
    return lambda *batch: tf.vectorized_map(
        lambda flat: tuple(function(*tf.nest.flatten(flat))),
        tuple(tf.nest.flatten(batch)),
        fallback_to_while_loop=False,
    )
