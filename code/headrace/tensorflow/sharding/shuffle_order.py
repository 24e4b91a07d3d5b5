"""Shuffle a listing (a dataset to be split into blocks) before the split. A block then has elements from many places.

Neighbouring elements are often of one kind: a folder of images is listed class by class. A worker can shuffle only
its block. If a block held consecutive elements, a worker with one block would make batches of one class.

So the listing gets a new order in each pass and repetition, and blocks are cut from this order. The workers' pipelines
omit `shuffle`. Otherwise each worker would fill a shuffle buffer, perhaps with all elements, before its first batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from headrace.tensorflow.sharding import dataset_ops
from headrace.tensorflow.sharding.dataset_graph import INFINITE, Node
from headrace.tensorflow.sharding.sources import dataset_of, is_rows, tensors_of

_MANY = 1 << 62
_ROUNDS = 8
"""Number of rounds of `RandomIndexShuffle`. TensorFlow's default, 4, does not shuffle 1,000 elements well enough."""


@dataclass(frozen=True)
class Order:
    """The shuffled order of a listing's elements. All processes that make parts of the listing get the same order."""

    elements: int
    """Number of elements in the listing (the dataset that is shuffled)."""
    buffer: int
    """Number of elements in the shuffle's buffer. An element moves only within a window of at most this size."""
    number: int = 0
    """Number that chooses the order."""
    repetitions: int = 1
    """Number of passes over the listing, each in another order; `INFINITE` if there is no end."""

    @property
    def places(self) -> int:
        """The number of positions in the order: `elements` times `repetitions`, but at most `_MANY`."""
        return _MANY if self.repetitions == INFINITE else min(self.elements * self.repetitions, _MANY)

    def numbers(self, places: tf.Tensor) -> tf.Tensor:
        """Turn positions in the order (`places`) into indices in the listing. Positions and indices count from 0."""
        repetition, place = places // self.elements, places % self.elements
        size = tf.constant(self._window, tf.int64)
        window = place // size
        first = window * size
        last = tf.minimum(first + size, self.elements) - first - 1
        seed = tf.stack([tf.fill(tf.shape(places), tf.constant(self.number, tf.int64)), window, repetition], axis=-1)
        return first + tf.raw_ops.RandomIndexShuffle(index=place - first, seed=seed, max_index=last, rounds=_ROUNDS)

    @property
    def _window(self) -> int:
        """Number of elements in a window. All windows are about equally large: a small one would hardly be shuffled."""
        windows = -(-self.elements // self.buffer)
        return -(-self.elements // windows)


@dataclass(frozen=True)
class Shuffle:
    """A `shuffle` after a source, such as a list of files. Only transformations of single elements lie between them."""

    node: Node
    repeat: Node | None
    """The `repeat` of the shuffled dataset, if one `Order` can cover all repetitions; else None."""
    is_replaceable: bool
    """True if an `Order` can replace the shuffle. False if the `Order` would be the same in each repetition."""

    @property
    def is_endless(self) -> bool:
        """Return whether the shuffled dataset is repeated without end, each time in another order."""
        return self.repeat is not None and int(self.repeat.value("count")) < 0

    def order(self, elements: int, number: int = 0) -> Order:
        """Return an `Order` to replace this shuffle of `elements` elements. `number` selects one of many orders."""
        buffer = int(self.node.value("buffer_size"))
        repetitions = INFINITE if self.is_endless else int(self.repeat.value("count")) if self.repeat else 1
        # A buffer of -1 is as large as the dataset.
        return Order(elements, min(buffer, elements) if buffer > 0 else elements, number, repetitions)


def shuffle_of(node: Node, elements: int, above: Sequence[Node]) -> Shuffle | None:
    """Return the shuffle of a listing's elements (file names, numbers, rows of arrays); None if there is none.

    Args:
        above: the transformations after the listing, in reverse order: the pipeline's last one comes first.
    """
    if elements == INFINITE or elements < 1 or not _is_selectable(node):
        return None
    near = list(itertools.takewhile(lambda each: each.op in dataset_ops.ONE_BY_ONE, reversed(above)))
    shuffle = next((each for each in near if each.op == "ShuffleDataset"), None)
    if not shuffle:
        return None
    repeats = [each for each in above if each.op == "RepeatDataset"]
    if len(repeats) != 1:
        return Shuffle(shuffle, None, not repeats)
    (repeat,) = repeats
    below = list(itertools.takewhile(lambda each: each is not repeat, reversed(above)))
    # No cache: it would have to hold all repetitions. Batches are allowed, though they may be cut at other places.
    kept = (*dataset_ops.ONE_BY_ONE, *dataset_ops.BATCHES)
    within = all(each.op in kept and each.op != "CacheDataset" for each in below)
    return Shuffle(shuffle, repeat if within else None, within)


def spread_block(node: Node, first: tf.Tensor, count: tf.Tensor, order: Order) -> tf.data.Dataset:
    """Return the elements that `order` puts at positions `first` to `first + count - 1`; fewer at the order's end."""
    numbers = order.numbers(tf.range(first, tf.minimum(first + count, order.places)))
    return tf.data.experimental.from_variant(_selected(node, numbers), node.specs)


def _is_selectable(node: Node) -> bool:
    if is_rows(node) or node.op == "RangeDataset":
        return True
    through = (*dataset_ops.FUNCTIONS, *dataset_ops.PASSING, "ZipDataset", "TakeDataset", "SkipDataset", "ShardDataset")
    return node.op in through and all(map(_is_selectable, node.inputs))


def _selected(node: Node, numbers: tf.Tensor) -> tf.Tensor:
    """Return a dataset, as a variant tensor. It has the elements of `node` whose indices are in `numbers`."""
    if is_rows(node):
        return dataset_of(node, [tf.gather(each, numbers) for each in tensors_of(node)])
    if node.op == "RangeDataset":
        start, step = (int(node.value(name)) for name in ("start", "step"))
        return dataset_of(node, [tf.cast(start + numbers * step, node.specs[0].dtype)])
    if node.op in (*dataset_ops.PASSING, "TakeDataset"):
        return _selected(node.inputs[0], numbers)
    if node.op == "SkipDataset":
        return _selected(node.inputs[0], numbers + int(node.value("count")))
    if node.op == "ShardDataset":
        shards, index = (int(node.value(name)) for name in ("num_shards", "index"))
        return _selected(node.inputs[0], numbers * shards + index)
    return node.on([_selected(each, numbers) for each in node.inputs])
