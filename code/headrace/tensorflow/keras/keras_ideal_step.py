"""The ideal step time: the time of a training step that never waits for data."""

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


def measure_ideal_step(model: keras.Model, dataset: Any, batch_size: int | None = None) -> IdealStep | None:
    """Measure a training step on one batch in memory: median time, its standard error, and CPU time on this rank.

    Return None if `dataset` is not a tf.data dataset, if the device lacks memory for the steps, or if the model gets
    its weights only in the first step (a custom `train_step` may do so). Return None also if training is eager: each
    measured step would run the script's Python code, with unknown effects.

    Weights, optimizer state, metrics and random seeds are restored exactly. Their copies are in the host's memory,
    since the device may lack room for them. All ranks must call this function together: the steps reduce gradients.

    The batch is made up from `dataset.element_spec` (random pixels, class 0), so that no element of the stream is
    used up. The dataset's first batch is used instead if any dimension but the batch size is unknown, or if the step
    fails on the made-up batch.

    Args:
        model: a compiled model.
        dataset: the dataset to train on.
        batch_size: the batch size, if `dataset.element_spec` does not tell it.
    """
    eagerly = model.run_eagerly or tf.config.functions_run_eagerly()
    if eagerly or not isinstance(dataset, tf.data.Dataset) or not broadcast.build(model, dataset.element_spec):
        return None
    broadcast.build_optimizer(model, model.optimizer)
    made_up = None
    if _says_enough(dataset.element_spec, batch_size):
        made_up = tf.nest.map_structure(lambda spec: _made_up(spec, batch_size), dataset.element_spec)
        _build_metrics(model, made_up)
    try:
        if made_up is not None:
            # A model may refuse zeros, for example as a length or as a vocabulary index. Then all ranks refuse them.
            with contextlib.suppress(tf.errors.InvalidArgumentError):
                return _measured(model, dataset, made_up)
        return _measured(model, dataset, next(iter(dataset.take(1))))
    except tf.errors.ResourceExhaustedError as error:
        print(f"the ideal step is not measured, since memory ran out: {error.message.splitlines()[0]}", flush=True)
        return None


def _measured(model: keras.Model, dataset: tf.data.Dataset, batch: Any) -> IdealStep:
    iterator = iter(_with_spec_of(tf.data.Dataset.from_tensors(batch).repeat(), dataset).prefetch(1))
    model.make_train_function()
    variables = _variables(model, iterator)
    before = [_copied(variable) for variable in variables]
    generator = compat.global_generator()
    generator_state = generator and tf.identity(generator.state)
    steps_per_call = max(int(model.steps_per_execution), 1)

    def call_s() -> float:
        start = time.perf_counter()
        for value in tf.nest.flatten(model.train_function(iterator)):
            np.asarray(value)  # waits until the step is really over: an accelerator computes in the background
        return time.perf_counter() - start

    try:
        call_s()  # the first call traces
        began_cpu_s, times_s = time.process_time(), [call_s(), call_s()]
        measured = collectives.same_on_all_ranks(steps_to_measure(min(times_s)), "headrace.ideal_steps")
        if settling := int(measured * SETTLING):
            for _ in range(settling):
                call_s()
            began_cpu_s, times_s = time.process_time(), []
        times_s += [call_s() for _ in range(measured - len(times_s))]
        cpu_s = time.process_time() - began_cpu_s
    finally:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)
        # The very first step may create metric variables; they start from zero.
        model.reset_metrics()
        if generator:
            generator.reset(generator_state)
    return IdealStep.of([each / steps_per_call for each in times_s], cpu_s / steps_per_call)


def _build_metrics(model: keras.Model, batch: Any) -> None:
    """Make the variables of the metrics, which Keras would otherwise make while it traces the first step.

    TensorFlow traces a step a second time if the first trace made variables. For a large model that takes many seconds.
    """
    # Before its first call, a Functional model has `output`, a Sequential one has `outputs`, and others have neither.
    output = model.outputs[0] if isinstance(model, keras.Sequential) else getattr(model, "output", None)
    keras_own = [getattr(type(model), name) is getattr(keras.Model, name) for name in ("train_step", "compute_metrics")]
    if output is None or not all(keras_own):
        return  # a script's own step may change the batch, and Keras chooses some metrics by its shape
    x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
    size = tf.nest.flatten(x)[0].shape[0]
    with contextlib.suppress(Exception):  # a metric may refuse zeros: then the first step makes its variables
        zeros = tf.nest.map_structure(lambda each: tf.zeros((size, *each.shape[1:]), each.dtype), output)
        model.compute_metrics(x, y, zeros, weights)
    model.reset_metrics()


def _variables(model: keras.Model, iterator: Any) -> list[tf.Variable]:
    """Return all variables that a step may write: those of the model, its optimizer and the script's own train_step.

    Tracing runs no step. It finds variables that only `train_step` uses: averaged weights, a second optimizer's state.
    """
    parts = [cell.cell_contents for cell in getattr(model.train_function, "__closure__", None) or ()]
    traced = [part.get_concrete_function(iterator) for part in parts if hasattr(part, "get_concrete_function")]
    own = [variable.value for variable in (*model.variables, *model.optimizer.variables)]
    found = {id(variable): variable for variable in (*own, *(each for one in traced for each in one.graph.variables))}
    return list(found.values())


def _copied(variable: tf.Variable) -> tf.Tensor:
    """Return a copy of the variable's value in the host's memory.

    If the copy shared the variable's memory, the next step would move the variable to new memory. Measured steps and
    training would then use different memory. With a few megabytes of weights, times would differ by up to 10 %.
    """
    with tf.device("CPU:0"):
        try:
            return tf.raw_ops.DeepCopy(x=variable)
        except tf.errors.OpError:  # DeepCopy does not support the type, such as quantised numbers
            return tf.identity(variable)


def _says_enough(element_spec: Any, batch_size: int | None) -> bool:
    """Return whether this specification is enough to make up a batch."""
    for spec in tf.nest.flatten(element_spec):
        if not isinstance(spec, tf.TensorSpec) or spec.dtype == tf.string or spec.shape.rank is None:
            return False  # a string cannot be made up: the model may need a certain format
        first, *others = list(spec.shape) or [0]
        if None in others or (first is None and not batch_size):
            return False
    return True


def _with_spec_of(cached: tf.data.Dataset, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return `cached` with the shapes that `dataset` declares, so that both share one traced training function."""
    options = tf.data.Options()
    options.autotune.enabled = False  # else the iterator's end waits for autotuning, up to 3 s on busy processors

    def relax(*elements: Any) -> Any:
        batch = elements if type(dataset.element_spec) is tuple else elements[0]  # `map` unpacks only plain tuples
        return tf.nest.map_structure(
            lambda tensor, spec: tf.compat.v1.placeholder_with_default(tensor, spec.shape), batch, dataset.element_spec
        )

    return cached.map(relax).with_options(options)


def _made_up(spec: tf.TensorSpec, batch_size: int | None) -> tf.Tensor:
    shape: list[Any] = [batch_size if size is None else size for size in spec.shape]
    rng = np.random.default_rng(0)
    if spec.dtype.is_floating:
        return tf.constant(rng.random(shape), spec.dtype)
    if len(shape) > 2 and spec.dtype == tf.uint8:
        return tf.constant(rng.integers(0, 256, shape), spec.dtype)
    return tf.zeros(shape, spec.dtype)
