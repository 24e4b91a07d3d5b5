"""The ideal step time: what a training step costs when it never waits for data."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from headrace.tensorflow import compat
from headrace.tensorflow.keras import broadcast
from headrace.tensorflow.ranks import collectives
from headrace.training.ideal_step import SETTLING, IdealStep, steps_to_measure

WARM_UP_STEPS = 3
"""Steps that tell how many to measure: the first traces the training function, the second still fills caches."""


def measure_ideal_step(model: keras.Model, dataset: Any, batch_size: int | None = None) -> IdealStep | None:
    """A training step on one batch in memory: the median, its error, and its CPU time on this rank.

    None if only the first step makes the model's weights, as with a `train_step` of its own, if it is trained on
    something else than a tf.data dataset, or eagerly: then the script's Python would run, and nobody knows what it
    writes.

    Weights, optimizer state, metrics and random seeds are put back exactly; meanwhile they are kept in the host's
    memory, since a device may hold no second copy. None, too, where the device has no memory for the steps. All ranks
    must call it together: the steps reduce gradients.

    The batch is made up from `dataset.element_spec` (random pixels, class 0), so that no element of the
    stream is used up; where the spec leaves more open than the batch size, or the step fails on what is made up, it is
    the dataset's first.

    Args:
        model: compiled.
        dataset: what the model will be trained on.
        batch_size: fills an unknown first dimension.
    """
    eagerly = model.run_eagerly or tf.config.functions_run_eagerly()
    if eagerly or not isinstance(dataset, tf.data.Dataset) or not broadcast.build(model, dataset.element_spec):
        return None
    broadcast.build_optimizer(model, model.optimizer)
    if _says_enough(dataset.element_spec, batch_size):
        made_up = tf.nest.map_structure(lambda spec: _made_up(spec, batch_size), dataset.element_spec)
        # A model may refuse zeros: a length, or a number that has to be in a vocabulary. All ranks do, or none.
        with contextlib.suppress(tf.errors.InvalidArgumentError):
            return _measured_if_it_fits(model, dataset, made_up)
    return _measured_if_it_fits(model, dataset, next(iter(dataset.take(1))))


def _measured_if_it_fits(model: keras.Model, dataset: tf.data.Dataset, batch: Any) -> IdealStep | None:
    try:
        return _measured(model, dataset, batch)
    except tf.errors.ResourceExhaustedError as error:
        print(f"the ideal step is not measured, for want of memory: {error.message.splitlines()[0]}", flush=True)
        return None


def _measured(model: keras.Model, dataset: tf.data.Dataset, batch: Any) -> IdealStep:
    iterator = iter(_with_spec_of(tf.data.Dataset.from_tensors(batch).repeat(), dataset))
    model.make_train_function()
    variables = _variables(model, iterator)
    before = [_copied(variable) for variable in variables]
    generator = compat.global_generator()
    generator_state = generator and tf.identity(generator.state)
    steps_per_call = max(int(model.steps_per_execution), 1)

    def call_s() -> float:
        start = time.perf_counter()
        _wait_for(model.train_function(iterator))
        return time.perf_counter() - start

    try:
        *_, last_s = [call_s() for _ in range(WARM_UP_STEPS)]
        measured = collectives.same_on_all_ranks(steps_to_measure(last_s), "headrace.ideal_steps")
        for _ in range(int(measured * SETTLING)):
            call_s()
        cpu_s = time.process_time()
        times_s = [call_s() / steps_per_call for _ in range(measured)]
        cpu_s = (time.process_time() - cpu_s) / steps_per_call
    finally:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)
        # Metric variables may be created by the very first step; they start from zero.
        model.reset_metrics()
        if generator:
            generator.reset(generator_state)
    return IdealStep.of(times_s, cpu_s)


def _variables(model: keras.Model, iterator: Any) -> list[tf.Variable]:
    """All that a step may write: the model's and its optimizer's, and what else a train_step of the script's has.

    Such as further optimizers, or an average of the weights: tracing the step makes and finds them, and runs nothing.
    """
    parts = [cell.cell_contents for cell in getattr(model.train_function, "__closure__", None) or ()]
    traced = [part.get_concrete_function(iterator) for part in parts if hasattr(part, "get_concrete_function")]
    own = [variable.value for variable in (*model.variables, *model.optimizer.variables)]
    found = {id(variable): variable for variable in (*own, *(each for one in traced for each in one.graph.variables))}
    return list(found.values())


def _copied(variable: tf.Variable) -> tf.Tensor:
    """Return its value, in memory of its own on the host.

    A value that shares the variable's memory makes the next step write elsewhere: then all measured steps use other
    memory than those of the training do, and weights of a few megabytes are up to a tenth faster or slower there.
    """
    with tf.device("CPU:0"):
        try:
            return tf.raw_ops.DeepCopy(x=variable)
        except tf.errors.OpError:  # of a type that it does not know, as quantised numbers are
            return tf.identity(variable)


def _wait_for(logs: Any) -> None:
    """Until the step is really over: its results are computed in the background on an accelerator."""
    for value in tf.nest.flatten(logs):
        np.asarray(value)


def _says_enough(element_spec: Any, batch_size: int | None) -> bool:
    """Whether a batch can be made up."""
    specs = tf.nest.flatten(element_spec)
    shapes = [spec.shape for spec in specs if isinstance(spec, tf.TensorSpec)]
    texts = any(spec.dtype == tf.string for spec in specs if isinstance(spec, tf.TensorSpec))  # of some grammar
    return not texts and len(shapes) == len(specs) and not any(_open_dimensions(shape, batch_size) for shape in shapes)


def _with_spec_of(cached: tf.data.Dataset, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """`cached` with the shapes that `dataset` declares, so that both share one traced training function."""

    def relax(*elements: Any) -> Any:
        batch = elements if type(dataset.element_spec) is tuple else elements[0]  # a named tuple is one argument
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
