"""A listing that is shuffled: its blocks have elements from everywhere that the shuffle reaches.

What stands side by side is often of one kind: a folder of images is listed class by class. A worker shuffles the
blocks that it got. One that came late and got a single block made a batch of a single class of it, had the block been
elements in a row.

Where a pass goes through the listing once, a new order of it in each pass does what the shuffle is for. Then workers
need none of their own, which would take a buffer full of elements, or all that there are, before it gives the first
one: a slow worker as many as a fast one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from headrace.tensorflow.graph import INFINITE, Node
from headrace.tensorflow.kinds import FUNCTIONS, ONE_BY_ONE, PASSING
from headrace.tensorflow.rows import dataset_of, is_rows, tensors_of

_ROUNDS = 8
"""Of the cipher that an order comes from; with TensorFlow's 4, place and number are correlated in 1,000 elements."""


@dataclass(frozen=True)
class Order:
    """Where the elements of a shuffled listing stand, for whoever makes any part of it."""

    elements: int
    """Of the listing."""
    buffer: int
    """Of the shuffle: elements stay in windows that are no larger."""
    number: int = 0
    """Another one for another order."""

    def numbers(self, places: tf.Tensor) -> tf.Tensor:
        """The elements that stand at these places; both count from 0."""
        size = tf.constant(self._window, tf.int64)
        window = places // size
        first = window * size
        last = tf.minimum(first + size, self.elements) - first - 1
        seed = tf.stack([tf.fill(tf.shape(places), tf.constant(self.number, tf.int64)), window, window], axis=-1)
        return first + tf.raw_ops.RandomIndexShuffle(index=places - first, seed=seed, max_index=last, rounds=_ROUNDS)

    @property
    def _window(self) -> int:
        """Windows are of equal size, as nearly as can be: the last elements are shuffled as well as the first."""
        windows = -(-self.elements // self.buffer)
        return -(-self.elements // windows)


def shuffle_of(node: Node, elements: int, above: Sequence[Node]) -> Node | None:
    """The shuffle of a listing's elements that comes before anything that looks at several, if there is one.

    Args:
        above: what reads the listing, nearest last.
    """
    if elements == INFINITE or elements < 1 or not _is_selectable(node):
        return None
    for each in reversed(above):
        if each.op == "ShuffleDataset":
            return each
        if each.op not in ONE_BY_ONE:
            return None
    return None


def order_of(shuffle: Node, elements: int, number: int = 0) -> Order:
    """What a shuffle makes of a listing with so many elements."""
    buffer = int(shuffle.value("buffer_size"))
    return Order(elements, min(buffer, elements) if buffer > 0 else elements, number)  # -1: as large as the dataset


def spread_block(node: Node, first: tf.Tensor, count: tf.Tensor, order: Order) -> tf.data.Dataset:
    """The elements of a listing that stand at `count` places of an order, from `first` on, as far as there are any."""
    numbers = order.numbers(tf.range(first, tf.minimum(first + count, order.elements)))
    return tf.data.experimental.from_variant(_selected(node, numbers), node.specs)


def _is_selectable(node: Node) -> bool:
    if is_rows(node) or node.op == "RangeDataset":
        return True
    through = (*FUNCTIONS, *PASSING, "ZipDataset", "TakeDataset", "SkipDataset", "ShardDataset")
    return node.op in through and all(map(_is_selectable, node.inputs))


def _selected(node: Node, numbers: tf.Tensor) -> tf.Tensor:
    """The variant of a dataset of these elements."""
    if is_rows(node):
        return dataset_of(node, [tf.gather(each, numbers) for each in tensors_of(node)])
    if node.op == "RangeDataset":
        start, step = (int(node.value(name)) for name in ("start", "step"))
        return dataset_of(node, [tf.cast(start + numbers * step, node.specs[0].dtype)])
    if node.op in (*PASSING, "TakeDataset"):
        return _selected(node.inputs[0], numbers)
    if node.op == "SkipDataset":
        return _selected(node.inputs[0], numbers + int(node.value("count")))
    if node.op == "ShardDataset":
        shards, index = (int(node.value(name)) for name in ("num_shards", "index"))
        return _selected(node.inputs[0], numbers * shards + index)
    return node.on([_selected(each, numbers) for each in node.inputs])
