"""Has a stream call Python now and then, to look at what may have changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

LOOK_EVERY = 8
"""Batches, after which something is looked at again; the first of each pass is one."""


def now_and_then(
    stream: tf.data.Dataset, look: Callable[..., None], arguments: Sequence[tf.Tensor] = ()
) -> tf.data.Dataset:
    """The stream, where Python's `look` is called before the first batch and each `LOOK_EVERY`-th; it may raise.

    Args:
        look: gets the batch's number, and the arguments.
    """

    @tf.autograph.experimental.do_not_convert
    def looked_after(at: tf.Tensor, batch: Any) -> Any:
        def now() -> tf.Tensor:
            with tf.control_dependencies([tf.numpy_function(look, [at, *arguments], [])]):
                return tf.constant(True)

        looked = tf.cond(at % LOOK_EVERY == 0, now, lambda: tf.constant(False))
        with tf.control_dependencies([looked]):
            return tf.nest.map_structure(_identity, batch, expand_composites=True)

    return stream.enumerate().map(looked_after)


def _identity(value: Any) -> Any:
    return value if value is None else tf.identity(value)
