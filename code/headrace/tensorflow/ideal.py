"""The ideal step time: what a training step costs when it never waits for data."""

from __future__ import annotations

import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

WARM_UP_STEPS = 2
"""Steps before the measured ones: the first traces the training function."""
MEASURED_STEPS = 5


def measure_ideal_step_ms(model: keras.Model, dataset: tf.data.Dataset, batch_size: int | None = None) -> float:
    """Median milliseconds of a training step on one batch in memory.

    Weights, optimizer state, metrics and random seeds are put back exactly. All ranks must call it
    together: the steps reduce gradients.

    The batch is made up from `dataset.element_spec` (random pixels, class 0), so that no element of the
    stream is used up; where the spec leaves more open than the batch size, it is the dataset's first.

    Args:
        model: compiled, built.
        dataset: what the model will be trained on.
        batch_size: fills an unknown first dimension.
    """
    batch = _cached_batch(dataset, batch_size)
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    variables = [*model.variables, *model.optimizer.variables]
    before = [tf.identity(variable.value) for variable in variables]
    generator = tf.random.get_global_generator()
    generator_state = tf.identity(generator.state)
    iterator = iter(_with_spec_of(tf.data.Dataset.from_tensors(batch).repeat(), dataset))
    model.make_train_function()
    try:
        times_s = []
        for _ in range(WARM_UP_STEPS + MEASURED_STEPS):
            start = time.perf_counter()
            logs = model.train_function(iterator)
            _wait_for(logs)
            times_s.append(time.perf_counter() - start)
    finally:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)
        # Metric variables may be created by the very first step; they start from zero.
        model.reset_metrics()
        generator.reset(generator_state)
    return float(np.median(times_s[WARM_UP_STEPS:])) * 1000 / max(int(model.steps_per_execution), 1)


def _wait_for(logs: Any) -> None:
    """Until the step is really over: its results are computed in the background on an accelerator."""
    for value in tf.nest.flatten(logs):
        np.asarray(value)


def _cached_batch(dataset: tf.data.Dataset, batch_size: int | None) -> Any:
    specs = tf.nest.flatten(dataset.element_spec)
    shapes = [spec.shape for spec in specs if isinstance(spec, tf.TensorSpec)]
    if len(shapes) < len(specs) or any(_open_dimensions(shape, batch_size) for shape in shapes):
        return next(iter(dataset.take(1)))
    return tf.nest.map_structure(lambda spec: _made_up(spec, batch_size), dataset.element_spec)


def _with_spec_of(cached: tf.data.Dataset, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """`cached` with the shapes that `dataset` declares, so that both share one traced training function."""

    def relax(*elements: Any) -> Any:
        batch = elements if isinstance(dataset.element_spec, tuple) else elements[0]
        return tf.nest.map_structure(
            lambda tensor, spec: tf.compat.v1.placeholder_with_default(tensor, spec.shape), batch, dataset.element_spec
        )

    return cached.map(relax)


def _open_dimensions(shape: tf.TensorShape, batch_size: int | None) -> bool:
    return shape.rank is None or None in shape[1:] or (shape.rank > 0 and shape[0] is None and not batch_size)


def _made_up(spec: tf.TensorSpec, batch_size: int | None) -> tf.Tensor:
    shape: list[Any] = [batch_size if size is None else size for size in spec.shape]
    rng = np.random.default_rng(0)
    if spec.dtype.is_floating:
        return tf.constant(rng.random(shape), spec.dtype)
    if len(shape) > 2 and spec.dtype == tf.uint8:
        return tf.constant(rng.integers(0, 256, shape), spec.dtype)
    return tf.zeros(shape, spec.dtype)
