"""Deal a listing, or the records of a few files, to ranks that read the data themselves."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from headrace.errors import InputError
from headrace.tensorflow.ranks import collectives
from headrace.tensorflow.sharding.dataset_graph import INFINITE
from headrace.tensorflow.sharding.split_points import Source, is_endless

_ODD = 6364136223846793005
"""The multiplier of Knuth's random number generator for MMIX."""
_BITS = (1 << 64) - 1


def ranks_that_share(source: Source) -> tuple[int, int]:
    """Return the number of ranks and this rank's number. Raises `InputError` if a rank would repeat an empty part."""
    node, ranks = source.node, collectives.size()
    parts = source.blocks if source.elements != INFINITE and not source.expanding else ranks
    if parts < ranks and is_endless(node.graph.sink):
        raise InputError(
            f"{node.place}: {source.elements} elements in batches make {parts} parts for {ranks} ranks. "
            "Some ranks would have none: use more elements, or smaller batches; to give each rank all elements (to "
            "see whether a model can learn one batch, say): data.distribute(…, shared=False)"
        )
    return ranks, collectives.rank()


def dealt(records: tf.data.Dataset, ranks: int, rank: int, listing: int = 0) -> tf.data.Dataset:
    """Return a rank's part: one record of each turn. A turn is `ranks` records; the record's place in it varies.

    The place changes because files or classes may be interleaved: with a fixed place, a rank would have records of only
    some of them, and batches of one class.

    Args:
        listing: this listing's number among several; without it, the first rank would have all of many short ones.
    """

    def is_ours(number: tf.Tensor, _: Any) -> tf.Tensor:
        return number % ranks == place_of(number // ranks, ranks, rank, listing)

    return records.enumerate().filter(is_ours).map(lambda _, record: record) if ranks > 1 else records


def place_of(turn: tf.Tensor, ranks: int, rank: int, listing: int = 0) -> tf.Tensor:
    """Return which record of a turn is this rank's; see `dealt`."""
    of_listing = listing % ranks + _mixed(listing // ranks) % ranks
    mixed = (turn + 1) * _ODD
    mixed = tf.bitwise.bitwise_xor(mixed, tf.bitwise.right_shift(mixed, 29)) * _ODD
    return (rank - of_listing - tf.bitwise.right_shift(mixed, 33) % ranks) % ranks


def _mixed(turn: int) -> int:
    mixed = (turn + 1) * _ODD & _BITS
    return ((mixed ^ mixed >> 29) * _ODD & _BITS) >> 33
