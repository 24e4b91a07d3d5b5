"""A listing that is shuffled: its blocks have elements from everywhere that the shuffle reaches.

What stands side by side is often of one kind: a folder of images is listed class by class. A worker shuffles the
blocks that it got. One that came late and got a single block made a batch of a single class of it, had the block been
elements in a row.

A new order of the listing in each pass, and each time that it is repeated, does what the shuffle is for. Then workers
need none of their own, which would take a buffer full of elements, or all that there are, before it gives the first
one: a slow worker as many as a fast one.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from headrace.tensorflow.sharding.dataset_graph import INFINITE, Node
from headrace.tensorflow.sharding.dataset_ops import BATCHES, FUNCTIONS, ONE_BY_ONE, PASSING
from headrace.tensorflow.sharding.rows import dataset_of, is_rows, tensors_of

_MANY = 1 << 62
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
    repetitions: int = 1
    """How often the listing is gone through, in an order of its own each time; `INFINITE`."""

    @property
    def places(self) -> int:
        """In all repetitions, as far as they can be counted."""
        return _MANY if self.repetitions == INFINITE else min(self.elements * self.repetitions, _MANY)

    def numbers(self, places: tf.Tensor) -> tf.Tensor:
        """The elements that stand at these places; both count from 0."""
        repetition, place = places // self.elements, places % self.elements
        size = tf.constant(self._window, tf.int64)
        window = place // size
        first = window * size
        last = tf.minimum(first + size, self.elements) - first - 1
        seed = tf.stack([tf.fill(tf.shape(places), tf.constant(self.number, tf.int64)), window, repetition], axis=-1)
        return first + tf.raw_ops.RandomIndexShuffle(index=place - first, seed=seed, max_index=last, rounds=_ROUNDS)

    @property
    def _window(self) -> int:
        """Windows are of equal size, as nearly as can be: the last elements are shuffled as well as the first."""
        windows = -(-self.elements // self.buffer)
        return -(-self.elements // windows)


@dataclass(frozen=True)
class Shuffle:
    """What shuffles a listing, before anything looks at several of its elements."""

    node: Node
    repeat: Node | None
    """What repeats the listing, where an order can do that too."""
    is_replaceable: bool
    """Whether orders can do all that it does: elsewhere what goes through the listing again begins it anew."""

    @property
    def is_endless(self) -> bool:
        """Whether the listing is repeated without end, in an order of its own each time."""
        return self.repeat is not None and int(self.repeat.value("count")) < 0

    def order(self, elements: int, number: int = 0) -> Order:
        """What it makes of a listing with so many elements."""
        buffer = int(self.node.value("buffer_size"))
        repetitions = INFINITE if self.is_endless else int(self.repeat.value("count")) if self.repeat else 1
        # -1: as large as the dataset
        return Order(elements, min(buffer, elements) if buffer > 0 else elements, number, repetitions)


def shuffle_of(node: Node, elements: int, above: Sequence[Node]) -> Shuffle | None:
    """How the elements of a listing are shuffled, if they are.

    Args:
        above: what reads the listing, nearest last.
    """
    if elements == INFINITE or elements < 1 or not _is_selectable(node):
        return None
    near = list(itertools.takewhile(lambda each: each.op in ONE_BY_ONE, reversed(above)))
    shuffle = next((each for each in near if each.op == "ShuffleDataset"), None)
    if not shuffle:
        return None
    repeats = [each for each in above if each.op == "RepeatDataset"]
    if len(repeats) != 1:
        return Shuffle(shuffle, None, not repeats)
    (repeat,) = repeats
    below = list(itertools.takewhile(lambda each: each is not repeat, reversed(above)))
    # A cache below it would have to hold all repetitions. Where batches are cut may differ.
    within = all(each.op in (*ONE_BY_ONE, *BATCHES) and each.op != "CacheDataset" for each in below)
    return Shuffle(shuffle, repeat if within else None, within)


def spread_block(node: Node, first: tf.Tensor, count: tf.Tensor, order: Order) -> tf.data.Dataset:
    """The elements of a listing that stand at `count` places of an order, from `first` on, as far as there are any."""
    numbers = order.numbers(tf.range(first, tf.minimum(first + count, order.places)))
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
