"""A stream of batches that ends for all ranks after the same number of them.

Ranks share a stream, or have parts of their own; either way they come to its end after unequal numbers of batches, and
a rank that makes a step more than another waits for it in an allreduce for ever. So ranks tell each other how many
batches they have had (`agreement_thread`, with `agreement` and `rank_messages`). A rank with a batch goes on at once
(`pad`); only at the end a rank waits, in a TensorFlow queue, so that the end of an iterator wakes it. But a `take`
above a `prefetch` that has had enough waits for the one below to end, without waking it. So a rank that gives up a
pass says so at once, which decides what others wait for.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from headrace.tensorflow.keras.evaluation import read_as
from headrace.tensorflow.now_and_then import now_and_then
from headrace.tensorflow.ranks import collectives
from headrace.tensorflow.ranks.agreement_thread import join
from headrace.tensorflow.ranks.stream_passes import Stream

Batch = Any


def end_together(stream: tf.data.Dataset, uneven: str, name: str) -> tf.data.Dataset:
    """The stream, ending on all ranks after the same number of batches; every rank must call it.

    Args:
        stream: this rank's batches.
        uneven: `pad`: the longest number; who has no batch left sees its last one again. `drop`: the shortest.
            `keep`: each rank its own.
        name: the stream's, for messages.
    """
    from tensorflow.python.data.ops.optional_ops import _OptionalImpl

    if uneven == "keep" or collectives.size() == 1:
        return stream
    ours = join(name, uneven)
    spec = stream.element_spec

    def wrapped(*batch: Batch) -> tf.Tensor:
        return tf.experimental.Optional.from_value(batch if isinstance(spec, tuple) else batch[0])._variant_tensor

    def keep_last(last: tf.Tensor, numbered: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, Any]:
        number, batch = numbered
        here = tf.raw_ops.OptionalHasValue(optional=batch)
        latest = tf.cond(here, lambda: batch, lambda: last)
        return latest, (number, here, latest)

    @tf.autograph.experimental.do_not_convert
    def one_pass(number: tf.Tensor) -> tf.data.Dataset:
        rest = tf.data.Dataset.from_tensors(0).repeat().map(lambda _: tf.raw_ops.OptionalNone())
        numbered = stream.map(wrapped).concatenate(rest).enumerate()
        kept = numbered.scan(tf.raw_ops.OptionalNone(), lambda last, each: keep_last(last, each))
        allowed = kept.take_while(lambda at, here, _: _may_go_on(ours, number, at, here))
        return allowed.map(lambda at, here, batch: _OptionalImpl(batch, spec).get_value())

    begun = tf.data.Dataset.from_generator(ours.passes, output_signature=tf.TensorSpec([], tf.int64))
    return read_as(begun.flat_map(one_pass), ours)


def read_alike(stream: tf.data.Dataset, name: str) -> tf.data.Dataset:
    """A stream without end, refused once ranks train with different passes over it; every rank must call it."""
    if collectives.size() == 1:
        return stream
    ours = join(name, "endless")

    @tf.autograph.experimental.do_not_convert
    def one_pass(number: tf.Tensor) -> tf.data.Dataset:
        return now_and_then(stream, lambda _, of_pass: ours.reads(of_pass), [number])

    begun = tf.data.Dataset.from_generator(ours.endless, output_signature=tf.TensorSpec([], tf.int64))
    return begun.flat_map(one_pass).apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))


def _may_go_on(ours: Stream, number: tf.Tensor, at: tf.Tensor, here: tf.Tensor) -> tf.Tensor:
    """Whether batch `at` of a pass is for all ranks; waits until that is known."""
    must_wait = tf.numpy_function(ours.arrived, [number, at, here], tf.bool)

    def wait() -> tf.Tensor:
        # What was decided for a pass that was given up meanwhile is left over in the queue.
        decided = tf.while_loop(
            lambda of_pass, _: of_pass < number,
            lambda *_: ours.decisions.dequeue(),
            (tf.constant(-1, tf.int64), tf.constant(False)),
        )
        # What was decided for a newer pass is its reader's.
        newer = decided[0] > number
        back = tf.cond(newer, lambda: _put_back(ours, decided), lambda: tf.constant(False))
        return tf.logical_and(tf.logical_and(decided[0] == number, decided[1]), tf.logical_not(back))

    go_on = tf.cond(must_wait, wait, lambda: tf.constant(True))
    go_on.set_shape([])
    return go_on


def _put_back(ours: Stream, decided: Any) -> tf.Tensor:
    with tf.control_dependencies([ours.decisions.enqueue(decided)]):
        return tf.constant(True)
