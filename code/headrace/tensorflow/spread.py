"""Blocks of a listing that is shuffled as a whole: each has elements from everywhere in it.

What stands side by side is often of one kind: a folder of images is listed class by class. A worker shuffles the
blocks that it got. One that came late and got a single block made a batch of a single class of it, had the block been
elements in a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from headrace.tensorflow.graph import INFINITE, Node
from headrace.tensorflow.kinds import FUNCTIONS, ONE_BY_ONE, PASSING
from headrace.tensorflow.rows import dataset_of, is_rows, tensors_of

_GOLDEN = (math.sqrt(5) - 1) / 2
"""Multiples of it, without their whole parts, fill the range from 0 to 1 evenly, however many they are."""


def may_be_spread(node: Node, elements: int, above: Sequence[Node]) -> bool:
    """Whether nobody could tell: a shuffle over all of a listing comes before anything that looks at several elements.

    Args:
        above: what reads the listing, nearest last.
    """
    if elements == INFINITE or not _is_selectable(node):
        return False
    for each in reversed(above):
        if each.op == "ShuffleDataset":
            buffer = int(each.value("buffer_size"))
            return buffer < 0 or buffer >= elements  # less than 0: as large as the dataset
        if each.op not in ONE_BY_ONE:
            return False
    return False


def spread_block(node: Node, first: tf.Tensor, count: tf.Tensor, elements: int) -> tf.data.Dataset:
    """`count` elements of a listing, from everywhere in it; over all blocks each element once.

    Element number i of what is cut into blocks is element (i × step) mod `elements` of the listing.
    """
    numbers = tf.range(first, tf.minimum(first + count, elements))
    variant = _selected(node, numbers * _step(elements) % elements)
    return tf.data.experimental.from_variant(variant, node.specs)


def _step(elements: int) -> int:
    """Has no divisor in common with `elements`, so that its multiples reach each number once."""
    step = max(round(elements * _GOLDEN), 1)
    while math.gcd(step, elements) != 1:
        step += 1
    return step


def _is_selectable(node: Node) -> bool:
    if is_rows(node) or node.op == "RangeDataset":
        return True
    return node.op in (*FUNCTIONS, *PASSING, "ZipDataset") and all(map(_is_selectable, node.inputs))


def _selected(node: Node, numbers: tf.Tensor) -> tf.Tensor:
    """The variant of a dataset of these elements."""
    if is_rows(node):
        return dataset_of(node, [tf.gather(each, numbers) for each in tensors_of(node)])
    if node.op == "RangeDataset":
        start, step = (int(node.value(name)) for name in ("start", "step"))
        return dataset_of(node, [tf.cast(start + numbers * step, node.specs[0].dtype)])
    if node.op in PASSING:
        return _selected(node.inputs[0], numbers)
    return node.on([_selected(each, numbers) for each in node.inputs])
