"""Give each pass over a dataset its own order and random draws, the same for all workers.

tf.data service hands out the same dataset in each pass, and a worker does not know which pass it is. So the dispatcher
gets several datasets, and ranks read the next one in each pass. The datasets differ in three things: the order of their
elements, the seeds of shuffles that workers run, and the initial states of random generators.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from headrace.tensorflow import compat
from headrace.tensorflow.sharding import random_state
from headrace.tensorflow.sharding.dataset_graph import DatasetGraph
from headrace.tensorflow.sharding.graphdef import arguments, put_constant
from headrace.tensorflow.sharding.shuffle_order import Shuffle

ORDERS = 16
"""Number of different orders that a shuffled dataset can have. After this many passes, the orders repeat."""
FEW_ORDERS = 4
"""Minimum number of orders for a finite dataset. If `ORDERS_BYTES` allows fewer, workers shuffle their own elements."""
ORDERS_BYTES = 256 << 20
"""Limit on the total size of a dataset's graphs, in bytes. The dispatcher gets at least one graph for each order."""


def orders_of(graph: DatasetGraph, shuffles: Collection[Shuffle], parts: int = 1) -> list[int]:
    """Return the numbers (`Order.number`) of the orders that replace these shuffles.

    Each pass uses the next order. The list is empty if there are no shuffles, or if the workers shuffle.

    Args:
        parts: number of datasets that the dispatcher gets for each order. It is 1, or the number of ranks.
    """
    if not shuffles:
        return []
    orders = 1
    reshuffled = [each for each in shuffles if each.node.definition.attr["reshuffle_each_iteration"].b]
    if reshuffled:
        orders = min(ORDERS, ORDERS_BYTES // max(graph.definition.ByteSize() * parts, 1))
        if orders < FEW_ORDERS:
            if not all(each.is_endless for each in reshuffled):
                return []
            orders = 1  # enough: an endless dataset has few passes, and each repetition has its own order
    seeds = [int(each.node.value(name)) for each in shuffles for name in ("seed", "seed2")]
    first = random.Random(repr(seeds) if any(seeds) else None).getrandbits(60)
    return [first + each for each in range(orders)]


def _seeded_shuffles(graph: DatasetGraph) -> list[tuple[Any, int]]:
    """Find the seeded shuffles that reshuffle in each pass. For each, return the node of its `seed2`, and the value.

    Each pass has its own graph, from which workers take the seeds. With equal seeds all passes would have the same
    order, so `in_passes` changes `seed2` in each graph. A shuffle without seeds draws new seeds, and is left out.
    """
    found = []
    for node in graph.definition.node:
        if node.op in ("ShuffleDataset", "ShuffleDatasetV3") and node.attr["reshuffle_each_iteration"].b:
            holders = [graph.behind(arguments(node)[name][0]) for name in ("seed", "seed2")]
            if all(each.op == "Const" for each in holders):
                seeds = [int(tf.make_ndarray(each.attr["value"].tensor)) for each in holders]
                found += [(holders[1], seeds[1])] if any(seeds) else []
    return found


def in_passes(dataset: tf.data.Dataset, orders: Sequence[int]) -> list[tf.data.Dataset]:
    """Return one dataset for each pass. The datasets differ in random draws and, if `orders` are given, in order.

    `dataset` has order number `orders[0]`. Each pass gets its own graph, since a graph holds the initial states of
    random generators. With one graph for all passes, Keras's augmentation layers would change an image in the same way
    in every pass. The later graphs are edited copies of the first: tracing again would take twenty times as long.
    """
    made: list[tf.data.Dataset] = []
    graph = DatasetGraph(dataset)
    seeds, shuffles = random_state.first_values(graph), _seeded_shuffles(graph)
    passes = orders or range(max(min(ORDERS, ORDERS_BYTES // max(graph.definition.ByteSize(), 1)), 1))
    nodes = itertools.chain(graph.definition.node, *(each.node_def for each in graph.functions.values()))
    constants = (each.attr["value"].tensor for each in nodes if orders and each.op == "Const")
    holders = [each for each in constants if len(each.int64_val) == 1 and each.int64_val[0] == passes[0]]
    for number in passes:
        for each in holders:
            each.int64_val[:] = [number]
        for holder, seed in shuffles:
            put_constant(holder, np.int64(seed ^ len(made)))  # differs in each pass, and stays in the range of seeds
        if made:  # the first pass has the script's own states
            random_state.begin(seeds, str(len(made)))
        variant = tf.raw_ops.DatasetFromGraph(graph_def=graph.definition.SerializeToString())
        made.append(tf.data.experimental.from_variant(variant, dataset.element_spec))
    return made


def in_turn(streams: Sequence[tf.data.Dataset]) -> tf.data.Dataset:
    """Return a dataset that reads, in each pass, the next of these datasets."""
    if len(streams) == 1:
        return streams[0]
    spec = streams[0].element_spec
    with tf.device("CPU:0"):
        passes = tf.Variable(-1, dtype=tf.int64, trainable=False, name="passes")
        variants = tf.stack([compat.variant_of(each) for each in streams])

    def one_pass(number: tf.Tensor) -> tf.data.Dataset:
        return tf.data.experimental.from_variant(tf.gather(variants, number % len(streams)), spec)

    return tf.data.Dataset.from_tensors(0).map(lambda _: passes.assign_add(1)).flat_map(one_pass)
