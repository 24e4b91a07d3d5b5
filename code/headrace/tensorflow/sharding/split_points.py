"""Find where a dataset can be split among workers or ranks so that it still gives the same elements.

tf.data service splits each source of a pipeline independently. A worker gets some elements and runs the pipeline on
them. The result is right for transformations that treat elements one by one (`map`, `filter`, `batch`, …), and wrong
for those that depend on an element's place (`zip`, `take`, `skip`, …). So this module finds the last transformation
that depends on places, or the source if none does. The dataset made there is called a listing. Workers get its
elements by number, in blocks (`headrace.tensorflow.sharding.slicing`), and run later transformations on their blocks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from headrace.tensorflow.sharding import dataset_ops, graphdef
from headrace.tensorflow.sharding.dataset_graph import INFINITE, UNKNOWN_SIZE, DatasetGraph, Node
from headrace.tensorflow.sharding.determinism import has_seed
from headrace.tensorflow.sharding.refusals import refusal, refuse_costly, refuse_reading_again, refuse_unordered
from headrace.tensorflow.sharding.shuffle_order import Shuffle, shuffle_of
from headrace.tensorflow.sharding.slicing import is_addressable
from headrace.tensorflow.sharding.sources import array_rows, is_arrays, records_of

BLOCKS = 64
"""Minimum number of blocks if a dataset `is_addressable` and has 64 batches or more. Fast workers take more of them."""
MAX_BLOCK = 256
"""Limit on elements in a block if elements may be large. Text counts as large, since it may name large files."""
MAX_SMALL_BLOCK = 2048
"""Limit on elements in a block if elements are small. Such a block also has at most `MAX_SMALL_BLOCK_BYTES`."""
MAX_SMALL_BLOCK_BYTES = 8 << 20
SKIPPING_BLOCKS = 32
"""Limit on the number of blocks if a worker must make all earlier elements to reach a block."""


@dataclass(frozen=True)
class Source:
    """A listing: a dataset handed out in blocks. Workers or ranks run the rest of the pipeline on the blocks."""

    node: Node
    elements: int
    """Number of elements of the dataset; `INFINITE` if the dataset has no end."""
    block: int
    """Number of elements that are handed out at once."""
    expanding: Node | None
    """The transformation that turns each element into many, such as an interleave over files; None if there is none."""
    shuffle: Shuffle | None
    """The first shuffle after the dataset. None if a transformation between them does not treat elements one by one."""
    dropping: tuple[Node, ...] = ()
    """Transformations that drop an incomplete last batch on each worker or rank. Plain tf.data drops only one batch."""

    @property
    def blocks(self) -> int:
        return np.iinfo(np.int64).max // self.block if self.elements == INFINITE else -(-self.elements // self.block)


def find_sources(graph: DatasetGraph, one_block_a_batch: bool = False) -> list[Source]:
    """Return the sources of a pipeline: the inner datasets that are to be handed out in blocks.

    Args:
        one_block_a_batch: make each block one batch, for ranks that read the data themselves and request no blocks.

    Raises:
        InputError: splitting would change what the dataset gives; the message names the script's line and the fix.
    """
    return [_source(node, path, one_block_a_batch) for node, path in _ends(graph.sink, [])]


def as_listing(graph: DatasetGraph, block: int) -> tuple[int, int]:
    """Return the dataset's size and the block size, in elements. `SKIPPING_BLOCKS` may raise the block size.

    Raises:
        InputError: the dataset is endless or has no fixed order. Also raised if workers would make costly elements,
            or read large files, only to skip them.
    """
    refuse_unordered(graph.sink)
    elements, addressable = _numbered(graph.sink)
    if elements == INFINITE:
        refuse_costly(graph.sink, elements)
    return elements, block if addressable else max(block, -(-elements // SKIPPING_BLOCKS))


def is_endless(node: Node) -> bool:
    """Return whether a dataset has no end, even if TensorFlow does not know its size."""
    if node.size == INFINITE:
        return True
    through = node.op in (*dataset_ops.SPLITTABLE, "GroupByWindowDataset", "ConcatenateDataset")
    return through and any(map(is_endless, node.inputs))


def _ends(node: Node, above: list[Node]) -> Iterator[tuple[Node, list[Node]]]:
    """Yield each node at which the pipeline may be split, and a list of all later transformations, last one first."""
    path = [*above, node]
    if node.op == "CacheDataset" and str(node.value("filename").item().decode()):
        raise refusal(node, "all workers would write to the same cache file", "Write cache() without a file name")
    if node.op == "RepeatDataset" and int(node.value("count")) >= 0 and is_addressable(node):
        yield node, above  # elements are numbered across all repetitions, so batches are cut as without a split
    elif is_arrays(node):
        yield node, above
    elif node.op in dataset_ops.SPLITTABLE or _only_regroups(node):
        yield from _ends(node.inputs[0], path)
    elif node.op == "ConcatenateDataset":
        for each in node.inputs:
            yield from _ends(each, path)
    elif _mixes_whole_datasets(node):
        for each in node.inputs[1:]:
            yield from _ends(each, path)
    elif node.op == "RandomDataset" and not has_seed(node):
        return  # every worker draws its own numbers
    elif node.op in (*dataset_ops.BY_PLACE, *dataset_ops.SOURCES):
        yield node, above
    elif node.op == "RandomDataset":
        raise refusal(
            node,
            "with a seed (from its argument or from tf.random.set_seed), every worker would draw the same numbers",
            "Write tf.data.Dataset.range(n).map(…), and call tf.random.stateless_uniform in the map",
        )
    else:
        instead = "Write a pipeline that begins with a dataset of files or tensors, or with Dataset.range"
        if node.op in ("LoadDataset", "SnapshotDataset"):
            instead = "Write the data to TFRecords, and read these (tf.data.TFRecordDataset) instead"
        elif node.inputs:
            instead = (
                "Write the pipeline with other transformations (for example, shuffle and repeat instead of "
                "shuffle_and_repeat), or call this transformation after data.distribute"
            )
        raise refusal(node, "headrace cannot split this transformation's output among workers or ranks", instead)


def _source(node: Node, above: Sequence[Node], one_block_a_batch: bool) -> Source:
    if node.op in dataset_ops.BY_PLACE or node.op == "RepeatDataset":
        refuse_unordered(node)
    elements, addressable = _numbered(node)
    batch, expanding, dropping = _batch_above(above)
    if not one_block_a_batch and any(each.op in (*dataset_ops.REGROUPING, "GroupByWindowDataset") for each in above):
        batch = batch or 1  # as for bucket_by_sequence_length: a batch may span blocks, so blocks can have any size
    if expanding or not batch:
        block = 1
    elif one_block_a_batch:
        block = batch
    else:
        most = _most(node)
        wanted = most if elements == INFINITE else min(max(elements // BLOCKS, 1), most)
        block = max(wanted // batch, 1) * batch
    if not addressable and elements > SKIPPING_BLOCKS * block:
        block = -(-elements // (SKIPPING_BLOCKS * block)) * block
    return Source(node, elements, block, expanding, shuffle_of(node, elements, above), dropping)


def _numbered(node: Node) -> tuple[int, bool]:
    """Return the number of elements of a dataset, and whether each can be made without making those before it."""
    addressable = is_addressable(node)
    if not addressable:
        refuse_reading_again(node)
    elements = _count(node)
    if not addressable:
        refuse_costly(node, elements)
    return elements, addressable


def _most(node: Node) -> int:
    """Return the largest number of elements for a block. It depends on the size of an element."""
    no_size = (tf.string, tf.variant, tf.resource)
    if any(each.dtype in no_size or not each.shape.is_fully_defined() for each in node.specs):
        return MAX_BLOCK
    size = sum(int(each.shape.num_elements()) * each.dtype.size for each in node.specs)
    return min(max(MAX_SMALL_BLOCK_BYTES // max(size, 1), MAX_BLOCK), MAX_SMALL_BLOCK)


def _batch_above(above: Sequence[Node]) -> tuple[int, Node | None, tuple[Node, ...]]:
    """Return the batch size (0: no batch), the expanding node (or None), and the dropping nodes.

    The expanding node is the first `interleave` or similar before any batch. A dropping node drops an incomplete batch
    on every worker or rank. A `batch` is not a dropping node if all earlier transformations are one-to-one (`map`, …).
    In this case, only the last block has an incomplete batch. Plain tf.data would drop this batch too.
    """
    size, exact, expanding, known, dropping = 0, True, None, True, []
    for node in reversed(above):
        if node.op in dataset_ops.EXPANDING and _repeats_within(node):
            raise refusal(
                node,
                "its function turns some elements into endless datasets. A worker or rank that gets one of these "
                "might never come to other elements",
                "Write dataset.repeat() before this transformation, and remove the endless .repeat() from the function",
            )
        whole = exact and node.op in dataset_ops.BATCHES
        if not whole and _drops_remainder(node) and not is_endless(node.inputs[0]):
            dropping.append(node)
        if node.op in dataset_ops.BATCHES and known:
            size = max(size, 1) * max(int(node.value("batch_size")), 1)
        elif node.op in dataset_ops.EXPANDING and not size:
            expanding = expanding or node
        exact &= node.op in (*dataset_ops.ONE_TO_ONE, *dataset_ops.BATCHES)
        known &= node.op in (*dataset_ops.ONE_BY_ONE, *dataset_ops.BATCHES) and not expanding
    return size, expanding, tuple(dropping)


def _repeats_within(node: Node) -> bool:
    """Return whether a node's function, such as an interleave's, turns an element into an endless dataset."""
    return any(int(count) < 0 for count in _constants_within(node, "RepeatDataset", "count"))


def _drops_remainder(node: Node) -> bool:
    if node.op in dataset_ops.REGROUPING:
        return bool(node.value("drop_remainder"))
    return node.op == "GroupByWindowDataset" and any(_constants_within(node, "Batch", "drop_remainder"))


def _constants_within(node: Node, operation: str, argument: str) -> Iterator[Any]:
    """Yield the constants that a node's functions pass as `argument` to operations whose type contains `operation`."""
    inside = {each.name: each for each in node.operations}
    for each in (one for one in inside.values() if operation in one.op):
        for edge in graphdef.arguments(each).get(argument, []):
            given = inside.get(edge.partition(":")[0])
            if given is not None and given.op == "Const":
                yield tf.make_ndarray(given.attr["value"].tensor)


def _only_regroups(node: Node) -> bool:
    """Return whether a node is a group_by_window that only batches its groups, as bucket_by_sequence_length does."""
    made = {re.sub(r"V\d$", "", op) for op in node.function_ops if re.search(r"Dataset(V\d)?$", op)}
    return node.op == "GroupByWindowDataset" and made <= {*dataset_ops.BATCHES, *dataset_ops.FUNCTIONS, "FilterDataset"}


def _mixes_whole_datasets(node: Node) -> bool:
    """Return whether a node is a sample_from_datasets that ends only when all its datasets have ended."""
    if node.op != "DirectedInterleaveDataset" or node.definition.attr["stop_on_empty_dataset"].b:
        return False
    return any(each.op == "RandomDataset" for each in node.inputs[0].subtree())


def _count(node: Node) -> int:
    size = array_rows(node) if is_arrays(node) else node.size
    if size == UNKNOWN_SIZE:
        known = {each: each.empty_elements(records.count) for each in node.subtree() if (records := records_of(each))}
        size = int(node.graph.dataset(node, known).cardinality())
    if size != UNKNOWN_SIZE:
        return size
    try:
        counted = node.graph.dataset(node).reduce(tf.constant(0, tf.int64), lambda total, *_: total + 1)
    except tf.errors.OpError as error:
        reason = " ".join(error.message.split())[:200]
        raise refusal(
            node,
            f"its elements must be counted on the trainer, but counting failed ({reason})",
            "Write data.Shards.of_files(…, counts=…), or give the channel to dnn_group too",
        ) from error
    return int(counted)
