"""Share out a dataset whose batches can be counted, so that each rank knows beforehand how many batches it has.

Ranks then need no agreement at an epoch's end: all make the same number of steps, and Keras knows that number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from headrace.tensorflow.ranks import collectives
from headrace.tensorflow.sharding.dataset_graph import DatasetGraph, Node
from headrace.tensorflow.sharding.dataset_ops import BATCHES, ONE_TO_ONE
from headrace.tensorflow.sharding.dealing import place_of
from headrace.tensorflow.sharding.graphdef import arguments, put_constant
from headrace.tensorflow.sharding.slicing import is_addressable
from headrace.tensorflow.sharding.split_points import Source


@dataclass(frozen=True)
class Share:
    """One rank's part of a listing whose elements make a known number of batches.

    In each turn every rank takes a piece. In the last turns a piece is a single batch, so that no rank has more than
    one batch more than another.
    """

    rank: int
    ranks: int
    elements: int
    """Elements of the listing in a batch."""
    batches: int
    """Batches of all ranks together."""
    most: int
    """Batches in a large piece."""

    @property
    def _turns(self) -> int:
        """The number of turns in which every rank has a piece of `most` batches."""
        return self.batches // (self.ranks * self.most)

    @property
    def _rest(self) -> int:
        return self.batches - self._turns * self.ranks * self.most

    def pieces(self) -> int:
        """Return the number of this rank's pieces."""
        full, left = divmod(self._rest, self.ranks)
        place = int(place_of(tf.constant(self._turns + full, tf.int64), self.ranks, self.rank))
        return self._turns + full + (place < left)

    def piece(self, number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return a piece's first element and number of elements; the last piece may reach beyond the listing's end."""
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
        """Return the batches that this rank reads in an epoch: with `pad` and `drop` as many as every other rank."""
        if uneven == "keep":
            return self.own()
        each = self._turns * self.most
        return each + (-(-self._rest // self.ranks) if uneven == "pad" else self._rest // self.ranks)


def share_of(graph: DatasetGraph, sources: Sequence[Source]) -> Share | None:
    """Return this rank's share of a dataset, or None if the number of batches in a part is not known.

    The number is known for one listing of known size whose elements are only mapped, shuffled and batched. It is not
    known after a filter, or for files that an interleave reads.
    """
    if len(sources) != 1 or sources[0].expanding or sources[0].elements < 1:
        return None
    (source,) = sources
    elements = _elements_of_a_batch(graph.sink, source.node)
    if not elements or source.block % elements or not (is_addressable(source.node) or source.block == elements):
        return None
    as_many = tf.data.Dataset.range(source.elements).map(nothing_like(source.node))
    batches = int(graph.spliced({source.node: as_many}).cardinality())
    if batches not in (source.elements // elements, -(-source.elements // elements)):
        return None
    return Share(collectives.rank(), collectives.size(), elements, batches, source.block // elements)


def shrink_shuffles(graph: DatasetGraph, source: Node, share: Share) -> None:
    """Divide shuffle buffers by the number of ranks: each reaches as far in the listing, without more memory in all."""
    for node in graph.sink.subtree([source]):
        if node.op == "ShuffleDataset" and node is not source:
            holder = graph.behind(arguments(node.definition)["buffer_size"][0])
            size = int(tf.make_ndarray(holder.attr["value"].tensor)) if holder.op == "Const" else 0
            if size > 0:
                put_constant(holder, np.int64(-(-size // share.ranks)))
    graph.look_again()


def nothing_like(node: Node) -> Callable[[tf.Tensor], tuple[tf.Tensor, ...]]:
    """Return a function that makes an element of a transformation's types, to declare those of an empty dataset.

    Sparse and ragged tensors, and datasets, are variants here, and variants have no zeros.
    """

    def zeros(spec: tf.TensorSpec) -> tf.Tensor:
        shape = [size or 0 for size in spec.shape or []]
        return tf.fill(shape, tf.raw_ops.OptionalNone()) if spec.dtype == tf.variant else tf.zeros(shape, spec.dtype)

    return lambda _: tuple(map(zeros, node.specs))


def _elements_of_a_batch(sink: Node, listing: Node) -> int:
    """Return how many of the listing's elements make a batch of the dataset, or 0 if a node may change that number."""
    size, node = 1, sink
    while node is not listing:
        if node.op not in (*ONE_TO_ONE, *BATCHES):
            return 0
        size *= int(node.value("batch_size")) if node.op in BATCHES else 1
        node = node.inputs[0]
    return size
