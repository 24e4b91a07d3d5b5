"""Records of a few files dealt to the ranks, each of which reads them all."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_ODD = 6364136223846793005
"""Knuth's multiplier of MMIX's generator."""


def dealt(records: tf.data.Dataset, ranks: int, rank: int) -> tf.data.Dataset:
    """A rank's part: one of so many records as there are ranks, another one each time.

    Not every so-manieth: where files or classes are interleaved, a rank would have records of some of them alone, and
    batches of one class.
    """

    def is_ours(number: tf.Tensor, _: Any) -> tf.Tensor:
        turn, place = number // ranks, number % ranks
        mixed = (turn + 1) * _ODD
        mixed = tf.bitwise.bitwise_xor(mixed, tf.bitwise.right_shift(mixed, 29)) * _ODD
        return (place + tf.bitwise.right_shift(mixed, 33) % ranks) % ranks == rank

    return records.enumerate().filter(is_ours).map(lambda _, record: record) if ranks > 1 else records
