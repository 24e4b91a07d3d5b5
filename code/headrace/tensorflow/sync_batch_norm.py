"""Batch normalization over the batches of all ranks; reached as `horovod_keras.SyncBatchNormalization`."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from headrace.tensorflow import world


@keras.saving.register_keras_serializable("headrace")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """A `keras.layers.BatchNormalization` that normalizes with mean and variance over the batches of all ranks.

    It takes Keras's arguments. All ranks must train it at the same time. On one rank it is Keras's own.
    """

    def __init__(self, **keras_arguments: Any) -> None:
        super().__init__(**keras_arguments)
        self.supports_jit = False  # Horovod has no XLA operations

    def _moments(self, inputs: Any, mask: Any) -> Any:
        if world.size() == 1:
            return super()._moments(inputs, mask)

        def total(values: Any) -> Any:
            return tf.reduce_sum(values, self._reduction_axes, keepdims=True)

        def counted(values: Any) -> Any:
            return values if mask is None else tf.where(mask[..., tf.newaxis], values, tf.zeros_like(values))

        mask = None if mask is None else tf.cast(mask, tf.bool)
        sums = hvd.allreduce(tf.stack([total(counted(inputs)), total(counted(tf.ones_like(inputs)))]), op=hvd.Sum)
        mean = tf.math.divide_no_nan(sums[0], sums[1])
        # Not by E[x²] − E[x]², which loses all digits where the mean is much larger than the deviation.
        squares = hvd.allreduce(total(tf.square(counted(inputs - mean))), op=hvd.Sum)
        return tf.reshape(mean, [-1]), tf.reshape(tf.math.divide_no_nan(squares, sums[1]), [-1])
