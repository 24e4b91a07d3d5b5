"""Make blocks of a listing, which is any dataset whose elements come in the same order in every process.

Block number b of a listing is its elements b × size, …, (b + 1) × size - 1. A worker or rank makes only these elements:
each transformation asks its inputs for what it needs, down to the sources. Where that is impossible (such as for a
filter), the elements before the block are made too, and skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from headrace.tensorflow.sharding import dataset_ops
from headrace.tensorflow.sharding.dataset_graph import Node
from headrace.tensorflow.sharding.shuffle_order import Order, spread_block
from headrace.tensorflow.sharding.sources import dataset_of, is_rows, records_from, records_of, tensors_of

PARALLEL_BLOCKS = 4
"""Number of blocks (runs of a dataset's elements) that are made in parallel if the dataset contains a `map`."""
raw = tf.raw_ops
Piece = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]
"""Function that takes a block's number, and returns the number of its first element and how many elements it has."""


def block_of(node: Node, first: tf.Tensor, count: tf.Tensor, spec: Any = None) -> tf.data.Dataset:
    """Return the elements `first`, …, `first + count - 1` of the dataset `node`; fewer at the dataset's end.

    Call this in the function of a `flat_map` or `interleave`.

    Args:
        spec: the specification of an element; without it elements are flat tuples.
    """
    variant = _cut(node, tf.cast(first, tf.int64), tf.cast(count, tf.int64))
    return tf.data.experimental.from_variant(variant, spec or node.specs)


def in_blocks(
    node: Node, size: int, blocks: tf.data.Dataset, order: Order | None = None, piece: Piece | None = None
) -> tf.data.Dataset:
    """Return a dataset made of the blocks numbered in `blocks`. A block is `size` successive elements of `node`.

    Args:
        order: the order of the elements, if it is not that of `node`.
        piece: gives the first element and the size (up to `size`) of a block, if blocks have gaps or unequal sizes.
    """

    @tf.autograph.experimental.do_not_convert
    def make(number: tf.Tensor) -> tf.data.Dataset:
        first, count = piece(number) if piece else (number * size, tf.constant(size, tf.int64))
        return spread_block(node, first, count, order) if order else block_of(node, first, count)

    if any(each.op in dataset_ops.FUNCTIONS for each in node.subtree()):
        return blocks.interleave(make, PARALLEL_BLOCKS, size, num_parallel_calls=PARALLEL_BLOCKS, deterministic=True)
    return blocks.flat_map(make)


def is_addressable(node: Node) -> bool:
    """Return whether a block of this dataset can be made without making the elements before it."""
    if node.op == "RangeDataset" or is_rows(node) or records_of(node):
        return True
    through = node.op in dataset_ops.PASSING or (_has_cut(node) and node.op != "ShuffleDataset")
    return through and all(map(is_addressable, node.inputs))


def _has_cut(node: Node) -> bool:
    """Return whether a function in `_CUTS` can make a block (a range of successive elements) of the dataset `node`."""
    return node.op in _CUTS and (node.op not in ("RepeatDataset", "ConcatenateDataset") or node.inputs[0].size > 0)


def _cut(node: Node, first: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Return a variant tensor of the elements `first`, …, `first + count - 1` of `node`; fewer at the end of `node`."""
    if node.op in dataset_ops.PASSING:
        return _cut(node.inputs[0], first, count)
    if is_rows(node):
        return dataset_of(node, [each[first : first + count] for each in tensors_of(node)])
    if records := records_of(node):
        variant, before = records_from(records, first, count)
        return _part(node, variant, before, count)
    if _has_cut(node):
        return _CUTS[node.op](node, first, count)
    return _part(node, _whole(node), first, count)


def _range(node: Node, first: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    start, stop, step = (int(node.value(name)) for name in ("start", "stop", "step"))
    total = max(-(-(stop - start) // step), 0)
    count = _within(first, count, total)
    begin = start + first * step
    return raw.RangeDataset(start=begin, stop=begin + count * step, step=step, **_types(node))


def _functions(node: Node, first: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    # A function may capture further datasets.
    return node.on([_cut(node.inputs[0], first, count), *map(_whole, node.inputs[1:])])


def _zip(node: Node, first: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    return node.on([_cut(each, first, count) for each in node.inputs])


def _take(node: Node, first: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    limit = int(node.value("count"))
    return _cut(node.inputs[0], first, count if limit < 0 else _within(first, count, limit))


def _skip(node: Node, first: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    skipped = int(node.value("count"))
    return _cut(node.inputs[0], first + max(skipped, 0), count * int(skipped >= 0))


def _of_several(node: Node, first: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    several = int(node.value("num_shards" if node.op == "ShardDataset" else "batch_size"))
    return node.on([_cut(node.inputs[0], first * several, count * several)])


def _concatenate(node: Node, first: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    head, tail = node.inputs
    in_head = _within(first, count, head.size)
    rest = _cut(tail, tf.maximum(first - head.size, 0), count - in_head)
    return node.on([_cut(head, first, in_head), rest])


def _repeat(node: Node, first: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    repeated, times = node.inputs[0], int(node.value("count"))
    if times >= 0:
        count = _within(first, count, times * repeated.size)
    place = first % repeated.size
    head = tf.minimum(count, repeated.size - place)
    again = raw.RepeatDataset(input_dataset=_whole(repeated), count=-1, **_types(node))
    rest = raw.TakeDataset(input_dataset=again, count=count - head, **_types(node))
    return raw.ConcatenateDataset(input_dataset=_cut(repeated, place, head), another_dataset=rest, **_types(node))


def _shuffle(node: Node, first: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Return a block of a dataset shuffled in a fixed order. A `map` before the shuffle runs only for this block."""
    inner, later = node.inputs[0], []
    while inner.op in (*dataset_ops.FUNCTIONS, *dataset_ops.PASSING):
        later += [inner] if inner.op in dataset_ops.FUNCTIONS else []
        inner = inner.inputs[0]
    made = _part(inner, _in_order(node, inner), first, count)
    for each in reversed(later):
        made = each.on([made])
    return made


_CUTS = {
    "RangeDataset": _range,
    "ZipDataset": _zip,
    "TakeDataset": _take,
    "SkipDataset": _skip,
    "ShardDataset": _of_several,
    "ConcatenateDataset": _concatenate,
    "RepeatDataset": _repeat,
    "ShuffleDataset": _shuffle,
    **dict.fromkeys(dataset_ops.FUNCTIONS, _functions),
    **dict.fromkeys(dataset_ops.BATCHES, _of_several),
}


def _whole(node: Node) -> tf.Tensor:
    """Return the whole dataset, but without its caches and shuffle counters. Otherwise all blocks would share these."""
    if node.op in dataset_ops.PASSING:
        return _whole(node.inputs[0])
    if node.op == "ShuffleDataset":
        return _in_order(node, node.inputs[0])
    return node.on([_whole(each) for each in node.inputs])


def _in_order(node: Node, shuffled: Node) -> tf.Tensor:
    """Apply a shuffle like `node` to the dataset `shuffled`, but with the same order in each pass."""
    numbers = {name: int(node.value(name)) for name in ("buffer_size", "seed", "seed2")}
    return raw.ShuffleDataset(
        input_dataset=_whole(shuffled), reshuffle_each_iteration=False, **numbers, **_types(shuffled)
    )


def _part(node: Node, variant: tf.Tensor, first: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    skipped = raw.SkipDataset(input_dataset=variant, count=first, **_types(node))
    return raw.TakeDataset(input_dataset=skipped, count=count, **_types(node))


def _within(first: tf.Tensor, count: tf.Tensor, total: int) -> tf.Tensor:
    """Return how many of the numbers `first`, …, `first + count - 1` are below `total`."""
    return tf.clip_by_value(total - first, 0, count)


def _types(node: Node) -> dict[str, list[object]]:
    return {"output_types": [spec.dtype for spec in node.specs], "output_shapes": [spec.shape for spec in node.specs]}
