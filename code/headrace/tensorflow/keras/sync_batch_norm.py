"""Batch normalization over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from headrace.errors import InputError
from headrace.tensorflow.ranks import collectives


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
            raise InputError(
                "SyncBatchNormalization: fused=True hides statistics that ranks must exchange; leave it out"
            )
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
        rows = hvd.allreduce(
            tf.one_hot(collectives.rank(), collectives.size(), dtype=mean.dtype)[:, None] * own, op=hvd.Sum
        )
        counts, means, variances = tf.split(rows, [1, channels, channels], axis=1)
        shares = tf.math.divide_no_nan(counts, tf.reduce_sum(counts))
        of_all = tf.reduce_sum(shares * means, axis=0)
        return of_all, tf.reduce_sum(shares * (variances + tf.square(means - of_all)), axis=0)
