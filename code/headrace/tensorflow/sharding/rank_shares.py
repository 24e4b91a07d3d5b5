"""Share out a dataset among ranks.

If its batches can be counted before training, each rank gets a `Share`: a part with a known number of batches. Keras
then knows the number of steps, and ranks need not ask each other whether an epoch has ended. If ranks make their own
batches, as in `split_by_rank`, the function `dealt` selects a rank's elements, blocks or records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from headrace.tensorflow.ranks import collectives
from headrace.tensorflow.sharding import dataset_ops
from headrace.tensorflow.sharding.dataset_graph import DatasetGraph, Node
from headrace.tensorflow.sharding.graphdef import arguments, put_constant
from headrace.tensorflow.sharding.slicing import is_addressable
from headrace.tensorflow.sharding.split_points import Source

_ODD = 6364136223846793005
"""The multiplier of Knuth's random number generator for MMIX."""
_BITS = (1 << 64) - 1


@dataclass(frozen=True)
class Share:
    """One rank's part of a listing (a dataset of numbered elements). The part has a known number of batches.

    Ranks take pieces of the listing in turns, one piece each. The attribute `most` is the number of batches in a
    piece. In the last turns, a piece has only one batch, so that the ranks' numbers of batches differ by at most one.
    """

    rank: int
    ranks: int
    elements: int
    """Number of elements in a batch."""
    batches: int
    """Number of batches of all ranks together."""
    most: int
    """Number of consecutive batches that a rank takes in a turn. In the last turns, a rank takes only one batch."""

    @property
    def _turns(self) -> int:
        """The number of full turns. In a full turn, every rank takes a piece of `self.most` consecutive batches."""
        return self.batches // (self.ranks * self.most)

    @property
    def _rest(self) -> int:
        return self.batches - self._turns * self.ranks * self.most

    def pieces(self) -> int:
        """Return how many pieces (runs of consecutive batches) this rank takes."""
        full, left = divmod(self._rest, self.ranks)
        place = int(place_of(tf.constant(self._turns + full, tf.int64), self.ranks, self.rank))
        return self._turns + full + (place < left)

    def piece(self, number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return where piece `number` begins, and its size, in elements. The last piece may go beyond the dataset."""
        place = place_of(number, self.ranks, self.rank)
        is_large = number < self._turns
        large = (number * self.ranks + place) * self.most
        single = self._turns * self.ranks * self.most + (number - self._turns) * self.ranks + place
        batches = tf.where(is_large, tf.constant(self.most, tf.int64), tf.constant(1, tf.int64))
        return tf.where(is_large, large, single) * self.elements, batches * self.elements

    def own(self) -> int:
        """Return the number of this rank's batches."""
        return self._turns * (self.most - 1) + self.pieces()

    def steps(self, uneven: str) -> int:
        """Return how many batches this rank reads in an epoch. With `pad` or `drop` all ranks read the same number."""
        if uneven == "keep":
            return self.own()
        each = self._turns * self.most
        return each + (-(-self._rest // self.ranks) if uneven == "pad" else self._rest // self.ranks)


def share_of(graph: DatasetGraph, sources: Sequence[Source]) -> Share | None:
    """Return this rank's share of a dataset, or None if the number of batches is not known before training.

    The number is known if the dataset has one source of known size (a range, arrays, a list of names) whose elements
    are only mapped, shuffled and batched. It is not known after a filter, or for files that an interleave reads.
    """
    if len(sources) != 1 or sources[0].expanding or sources[0].elements < 1:
        return None
    (source,) = sources
    elements = _elements_of_a_batch(graph.sink, source.node)
    if not elements or source.block % elements or not (is_addressable(source.node) or source.block == elements):
        return None
    batches = int(graph.spliced({source.node: source.node.empty_elements(source.elements)}).cardinality())
    if batches not in (source.elements // elements, -(-source.elements // elements)):
        return None
    return Share(collectives.rank(), collectives.size(), elements, batches, source.block // elements)


def shrink_shuffles(graph: DatasetGraph, source: Node, share: Share) -> None:
    """Divide the sizes of shuffle buffers by the number of ranks, since each rank reads only its share of elements."""
    for node in graph.sink.subtree([source]):
        if node.op == "ShuffleDataset" and node is not source:
            holder = graph.behind(arguments(node.definition)["buffer_size"][0])
            size = int(tf.make_ndarray(holder.attr["value"].tensor)) if holder.op == "Const" else 0
            if size > 0:
                put_constant(holder, np.int64(-(-size // share.ranks)))


def _elements_of_a_batch(sink: Node, listing: Node) -> int:
    """Return how many elements of `listing` make a batch of `sink`; 0 if anything between may add or drop elements."""
    size, node = 1, sink
    while node is not listing:
        if node.op not in (*dataset_ops.ONE_TO_ONE, *dataset_ops.BATCHES):
            return 0
        size *= int(node.value("batch_size")) if node.op in dataset_ops.BATCHES else 1
        node = node.inputs[0]
    return size


def dealt(records: tf.data.Dataset, ranks: int, rank: int, listing: int = 0) -> tf.data.Dataset:
    """Return a rank's records: one from each group of `ranks` successive records.

    The rank's position in a group varies. At a fixed position, a rank might miss files or classes that alternate.

    Args:
        listing: index of this dataset among several datasets. The index decides which rank gets the first record.
    """

    def is_ours(number: tf.Tensor, _: Any) -> tf.Tensor:
        return number % ranks == place_of(number // ranks, ranks, rank, listing)

    return records.enumerate().filter(is_ours).map(lambda _, record: record) if ranks > 1 else records


def place_of(turn: tf.Tensor, ranks: int, rank: int, listing: int = 0) -> tf.Tensor:
    """Return the position of a rank's record in group number `turn`. A group has `ranks` records; see `dealt`."""
    of_listing = listing % ranks + _mixed(listing // ranks) % ranks
    mixed = (turn + 1) * _ODD
    mixed = tf.bitwise.bitwise_xor(mixed, tf.bitwise.right_shift(mixed, 29)) * _ODD
    return (rank - of_listing - tf.bitwise.right_shift(mixed, 33) % ranks) % ranks


def _mixed(turn: int) -> int:
    mixed = (turn + 1) * _ODD & _BITS
    return ((mixed ^ mixed >> 29) * _ODD & _BITS) >> 33
