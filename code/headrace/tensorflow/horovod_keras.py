"""A replacement for `horovod.tensorflow.keras` that works with Keras 3.

Import it under Horovod's usual name: `import headrace.tensorflow.horovod_keras as hvd`. Horovod's own Keras module does
not work with Keras 3. Horovod's TensorFlow module does, and this module is built on it.

Horovod is built without XLA operations, so `hvd.callbacks` and headrace's callbacks turn `jit_compile` off.
"""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as _hvd
import keras
import numpy as np
import tensorflow as tf
from horovod.tensorflow import Average, Compression, Sum, allgather, broadcast, local_rank, local_size, rank, size

from headrace.errors import InputError
from headrace.tensorflow.keras import horovod_callbacks as callbacks
from headrace.tensorflow.keras.broadcast import broadcast_state as broadcast_global_variables
from headrace.tensorflow.keras.optimizer import Reduction, distributed_class, is_distributed
from headrace.tensorflow.ranks import collectives
from headrace.tensorflow.ranks.collectives import init

__all__ = [
    "Average",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Sum",
    "SyncBatchNormalization",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "callbacks",
    "init",
    "load_model",
    "local_rank",
    "local_size",
    "rank",
    "size",
]


def __getattr__(name: str) -> Any:
    """Return Horovod's own attribute for a name that has nothing to do with Keras, such as `shutdown`."""
    if name.startswith("_"):
        raise AttributeError(name)
    if name == "elastic":
        raise AttributeError("headrace has no hvd.elastic: use callbacks.Checkpoint, to resume on any number of ranks")
    if name == "join":
        raise AttributeError(
            "headrace has no hvd.join(), since Horovod's can make ranks wait for each other for ever: give all ranks "
            "equally many steps (data.distribute does); to wait for all ranks, call hvd.allreduce(0.0)"
        )
    return getattr(_hvd, name)


def allreduce(value: Any, *args: Any, **options: Any) -> Any:
    """Reduce a tensor, number or list over all ranks, as Horovod does. Example: `hvd.allreduce(model.evaluate(…))`."""
    is_tensor = isinstance(value, (tf.Tensor, tf.Variable, tf.IndexedSlices, np.ndarray, np.generic))
    return _hvd.allreduce(value if is_tensor else tf.convert_to_tensor(value), *args, **options)


def DistributedOptimizer(  # noqa: N802  (Horovod's name)
    optimizer: keras.optimizers.Optimizer | str, *args: Any, **how: Any
) -> keras.optimizers.Optimizer:
    """Make an optimizer average the gradients of all ranks before it applies them. Start Horovod if needed.

    The optimizer keeps its class name and configuration, so a saved model loads anywhere as a plain Keras model. With
    `gradient_accumulation_steps` only accumulated gradients are averaged. To scale losses, pass a `LossScaleOptimizer`.
    If a `LossScaleOptimizer` wraps the result, ranks could skip different steps, so the first step raises an error.
    Under mixed_float16, `compile` adds such a wrapper. To prevent the error, pass one of these callbacks to `fit`:
    `callbacks.Measure`, or the broadcast or metric callback of `hvd.callbacks`.

    Args:
        optimizer: a Keras 3 optimizer, or the name of one. An unused optimizer is changed in place; for a used one, a
            new one is made with the same configuration and no state.
        args, how: Horovod's arguments: see `headrace.tensorflow.keras.optimizer.Reduction`.

    Raises:
        InputError: for an argument that headrace lacks, or in the scope of a multi-device tf.distribute strategy.
    """
    reduction = Reduction(*args, **how)
    init()
    collectives.refuse_several_devices()
    optimizer = keras.optimizers.get(optimizer)
    if is_distributed(optimizer) and not optimizer.built:
        return optimizer
    distributed = distributed_class(type(optimizer), reduction)
    if optimizer.built:
        return distributed.from_config(optimizer.get_config())
    # Changed in place: a configuration may lack parts, and not every optimizer or schedule can be rebuilt from one.
    optimizer.__class__ = distributed
    return optimizer


class DistributedGradientTape:
    """A `tf.GradientTape` whose gradients are averaged over all ranks, for custom training loops.

    `with tf.GradientTape() as tape: …`, then `tape = hvd.DistributedGradientTape(tape)`, then `tape.gradient(…)`, as
    with Horovod's. All other attributes are the wrapped tape's own.

    Args:
        gradtape: the tape to wrap, before or after it has recorded.
        args, how: Horovod's arguments: see `headrace.tensorflow.keras.optimizer.Reduction`.
    """

    def __init__(self, gradtape: tf.GradientTape, *args: Any, **how: Any) -> None:
        self._tape, self._reduction = gradtape, Reduction(*args, **how)
        init()

    def __enter__(self) -> DistributedGradientTape:
        self._tape.__enter__()
        return self

    def __exit__(self, *how: Any) -> None:
        self._tape.__exit__(*how)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    def gradient(self, target: Any, sources: Any, *args: Any, **options: Any) -> Any:
        """Return the gradients averaged over all ranks, in the structure of `sources`."""
        gradients = self._tape.gradient(target, sources, *args, **options)
        flat = self._reduction.gradients(tf.nest.flatten(gradients, expand_composites=False))
        return tf.nest.pack_sequence_as(gradients, flat, expand_composites=False)


@keras.saving.register_keras_serializable("headrace")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """A `keras.layers.BatchNormalization` that normalizes with mean and variance over the batches of all ranks.

    All ranks must train it at the same time. On a single rank it does the same as Keras's layer.

    Args:
        args, options: the arguments of Keras's layer.
        fused: must be False, as in Horovod's own layer.

    Raises:
        InputError: `fused` is True.
    """

    def __init__(self, *args: Any, fused: bool = False, **options: Any) -> None:
        if fused:
            raise InputError("SyncBatchNormalization: ranks cannot exchange statistics if fused=True; leave it out")
        super().__init__(*args, **options)
        self.supports_jit = False  # Horovod has no XLA operations

    def _moments(self, inputs: Any, mask: Any) -> Any:
        mean, variance = super()._moments(inputs, mask)
        if collectives.size() == 1:
            return mean, variance
        channels = inputs.shape[self.axis]
        positions = tf.cast(tf.size(inputs) / channels if mask is None else tf.math.count_nonzero(mask), mean.dtype)
        # Each rank fills a row. E[x²] − E[x]² is not used: it loses digits where the mean far exceeds the deviation.
        # See Chan, Golub, LeVeque: Updating formulae and a pairwise algorithm for computing sample variances.
        own = tf.concat([positions[None], tf.reshape(mean, [-1]), tf.reshape(variance, [-1])], axis=0)
        rows = _hvd.allreduce(
            tf.one_hot(collectives.rank(), collectives.size(), dtype=mean.dtype)[:, None] * own, op=_hvd.Sum
        )
        counts, means, variances = tf.split(rows, [1, channels, channels], axis=1)
        shares = tf.math.divide_no_nan(counts, tf.reduce_sum(counts))
        of_all = tf.reduce_sum(shares * means, axis=0)
        return of_all, tf.reduce_sum(shares * (variances + tf.square(means - of_all)), axis=0)


def load_model(
    filepath: str, custom_optimizers: Any = None, compression: Any = Compression.none, **options: Any
) -> keras.Model:
    """Load a model as `keras.saving.load_model` does, and make its optimizer a distributed one.

    Horovod's argument `custom_optimizers` is ignored, because the saved model itself names its optimizer's class.
    """
    model = keras.saving.load_model(filepath, **options)
    if getattr(model, "optimizer", None) is not None:
        model.optimizer.__class__ = distributed_class(type(model.optimizer), Reduction(compression))
        model.jit_compile = False
    return model


def broadcast_variables(variables: Any, root_rank: int = 0) -> None:
    """Set these Keras or TensorFlow variables on every rank to their values on `root_rank`."""
    if collectives.size() > 1:
        values = [each.value if isinstance(each, keras.Variable) else each for each in variables]
        _hvd.broadcast_variables(values, root_rank=root_rank)
