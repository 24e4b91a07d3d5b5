"""Split a dataset exactly, for the data service's workers or for ranks that read it themselves."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import tensorflow as tf

from headrace.errors import InputError
from headrace.events import say
from headrace.tensorflow.io import arrays
from headrace.tensorflow.options import Distribution
from headrace.tensorflow.ranks import collectives
from headrace.tensorflow.ranks.epoch_end import end_together, with_steps
from headrace.tensorflow.ranks.same_dataset import Found, all_endless, place, together, told
from headrace.tensorflow.sharding import random_state, refusals
from headrace.tensorflow.sharding.dataset_graph import INFINITE, UNKNOWN_SIZE, DatasetGraph, Node
from headrace.tensorflow.sharding.determinism import disorder
from headrace.tensorflow.sharding.epoch_orders import in_passes, orders_of
from headrace.tensorflow.sharding.rank_shares import Share, dealt, share_of, shrink_shuffles
from headrace.tensorflow.sharding.shuffle_order import Shuffle
from headrace.tensorflow.sharding.slicing import Piece, in_blocks
from headrace.tensorflow.sharding.split_points import Source, find_sources, is_endless

FEW_FILES = 4
"""Minimum number of files per rank, without workers. With fewer, a rank reads all, but keeps a share of the records."""
WORKER_AHEAD = 2
"""Number of batches that a worker makes ahead of requests, since it may not get a processor when a request comes."""
_SPLIT_BY_TENSORFLOW = ("RangeDataset", "TensorSliceDataset")
"""Sources that tf.data service itself splits among workers, element by element."""
_FORGETTING = ("InterleaveDataset", "GroupByWindowDataset")


@dataclass(frozen=True)
class Prepared:
    """The datasets for the workers, and what every rank knows of them."""

    datasets: list[tf.data.Dataset]
    """The datasets to register: one, or several if passes differ. Empty if another rank registers the datasets."""
    endless: bool
    share: Share | None
    """This rank's part, if each rank registers a part of its own with the dispatcher; else None."""


def prepare(dataset: tf.data.Dataset, how: Distribution, stream: str) -> Prepared:
    """Split a dataset for the workers. Every rank must call this.

    Raises:
        InputError: on every rank, if workers cannot make the dataset, or cannot make it in parts.
    """
    in_parts = how.exact and how.sharding == "dynamic"
    gives_workers = collectives.rank() == 0 or not how.shared

    def look() -> tuple[Found, list[int], DatasetGraph, list[Source], Share | None]:
        graph = DatasetGraph(dataset)
        endless = is_endless(graph.sink)
        if gives_workers:
            refusals.refuse_python(graph)
            refusals.refuse_large_arrays(graph)
            refusals.refuse_endings(graph, endless, how)
            arrays.send(graph.definition)
            if how.exact:
                random_state.refuse_written(graph)
        is_counted = in_parts and how.shared and not endless
        sources = find_sources(graph) if in_parts and (is_counted or gives_workers) else []
        refusals.warn_of_drops(node for source in sources for node in source.dropping)
        share = share_of(graph, sources) if is_counted else None
        alike = told(graph) if how.shared else []
        if share:  # each rank makes its own part, so seeds must be the same
            alike += [place(source.node) for source in sources]
        orders = orders_of(graph, _replaced(sources).values(), collectives.size() if share else 1)
        return (endless, alike), orders, graph, sources, share

    (*_, graph, sources, share), everyones = together(look, lambda own: own[:2])
    endless = all_endless([found for found, _ in everyones])
    if how.shared:
        refusals.look_at_size(graph.sink.size if how.exact else UNKNOWN_SIZE, how.uneven, stream)

    def make() -> list[tf.data.Dataset]:
        if not (share or gives_workers):
            return []
        orders = everyones[0 if how.shared else collectives.rank()][1]
        return _for_workers(graph, sources, orders, stream, share) if in_parts else [dataset]

    made, _ = together(make, lambda _: None)
    return Prepared(made, endless, share)


def register(datasets: list[tf.data.Dataset], service: str, compression: str | None, own: bool = False) -> list[str]:
    """Register this rank's datasets with the dispatcher. Return rank 0's dataset IDs or, with `own`, this rank's."""

    def send() -> list[str]:
        to_dispatcher = tf.data.experimental.service.register_dataset
        return [to_dispatcher(service, each, compression=compression).numpy().decode() for each in datasets]

    ids, everyones = together(send)
    return ids if own else list(everyones[0])


def on_this_rank(dataset: tf.data.Dataset, how: Distribution, stream: str) -> tf.data.Dataset:
    """Return the dataset that this rank reads when no worker makes batches: its part, or all of it."""
    if how.shared and how.exact:
        return of_this_rank(dataset, how.uneven, stream)
    if collectives.size() == 1:
        return dataset
    if how.shared:
        refusals.warn_of_all_of_it()

    def look() -> Found:
        try:
            return is_endless(DatasetGraph(dataset).sink), []
        except Exception:  # the dataset is too large for a graph, or cannot leave this process; both are allowed here
            return int(dataset.cardinality()) == INFINITE, []

    _, everyones = together(look)
    return dataset if all_endless(everyones) else end_together(dataset, how.uneven, stream)


def of_this_rank(dataset: tf.data.Dataset, uneven: str, stream: str) -> tf.data.Dataset:
    """Return this rank's part of a dataset. This rank, not a worker, makes the part.

    Raises:
        InputError: ranks cannot make the dataset in parts.
    """
    if collectives.size() == 1:
        return dataset

    def look() -> tuple[Found, tf.data.Dataset, int, Share | None]:
        graph = DatasetGraph(dataset)
        refusals.refuse_generator(graph)
        refusals.refuse_large_arrays(graph)
        random_state.refuse_written(graph)
        sources = find_sources(graph, one_block_a_batch=True)
        refusals.warn_of_drops(node for source in sources for node in source.dropping)
        part = graph.spliced(dict(itertools.starmap(_part, enumerate(sources))))
        # Each rank makes its blocks itself, so seeds must be the same.
        found = is_endless(graph.sink), [*told(graph), *(place(source.node) for source in sources)]
        return found, part, graph.sink.size, share_of(graph, sources)

    (_, part, size, share), everyones = together(look, lambda own: own[0])
    endless = all_endless(everyones)
    refusals.look_at_size(size, uneven, stream)
    if endless:
        return part
    if share:
        return with_steps(part, share.steps(uneven), share.own())
    return end_together(part, uneven, stream)


def _for_workers(
    graph: DatasetGraph, sources: list[Source], orders: list[int], stream: str, share: Share | None
) -> list[tf.data.Dataset]:
    """Return the workers' datasets: either one for all passes, or a list from which each pass takes the next one."""
    for source in sources if not (share and share.rank) else ():
        place = f"{source.node.kind}:{graph.where}"
        elements = "endless" if source.elements == INFINITE else source.elements
        say("data_split", stream=stream, source=place, elements=elements, block=source.block)
    shuffles = _replaced(sources) if orders else {}
    made = _in_order(graph, sources, shuffles, orders[0] if orders else 0, share)
    return in_passes(made, orders) if orders or random_state.first_values(graph) else [made]


def _replaced(sources: list[Source]) -> dict[Node, Shuffle]:
    """Return the shuffles that an `Order` can replace, as a dict from a source's node to the source's shuffle."""
    return {each.node: each.shuffle for each in sources if each.shuffle and each.shuffle.is_replaceable}


def _in_order(
    graph: DatasetGraph, sources: list[Source], shuffles: Mapping[Node, Shuffle], order: int, share: Share | None
) -> tf.data.Dataset:
    """Return a dataset that reads its sources in blocks. `order` chooses the random orders that replace `shuffles`."""
    new: dict[Node, tf.data.Dataset] = {}
    for source in sources:
        blocks = tf.data.Dataset.range(share.pieces() if share else source.blocks)
        piece = share.piece if share else None
        if shuffle := shuffles.get(source.node):
            shuffled = shuffle.order(source.elements, order)
            numbers = blocks if share else tf.data.Dataset.range(-(-shuffled.places // source.block))
            new[source.node] = in_blocks(source.node, source.block, numbers, shuffled, piece)
            replaced = {shuffle.node, shuffle.repeat}
            for each in reversed([each for each in graph.sink.subtree([source.node]) if each in replaced]):
                new[each] = graph.dataset(each.inputs[0], new)
        elif share or source.block > 1 or source.node.op not in _SPLIT_BY_TENSORFLOW:
            new[source.node] = _blocks_of(source, blocks, piece)
    _keep_splits(graph, new, {source.node for source in sources})
    if share:
        shrink_shuffles(graph, sources[0].node, share)
    return graph.spliced(new).prefetch(WORKER_AHEAD)


def _keep_splits(graph: DatasetGraph, new: dict[Node, tf.data.Dataset], sources: Collection[Node]) -> None:
    """Append an empty dataset to the input of each sequential interleave or group_by_window.

    Without the empty dataset, workers would not split an input that comes from `shuffle` or `repeat`. For example, each
    worker would read all files in `files.shuffle(n).interleave(…)`. The cause is in docs/tensorflow-lost-splits.md.
    """
    for node in reversed(list(graph.sink.subtree(sources))):
        if node.op in _FORGETTING and node.inputs[0] not in new:
            inner = graph.dataset(node.inputs[0], new)
            new[node.inputs[0]] = inner.concatenate(node.inputs[0].empty_elements(0))


def _part(number: int, source: Source) -> tuple[Node, tf.data.Dataset]:
    """Return a node of the dataset's graph, and the dataset that this rank reads in place of the node."""
    node, whole, ranks, rank = source.node, source.expanding, collectives.size(), collectives.rank()
    parts = source.blocks if source.elements != INFINITE and not whole else ranks
    if parts < ranks and is_endless(node.graph.sink):
        raise InputError(
            f"{node.place}: its {source.elements} elements, in batches, make only {parts} parts for {ranks} ranks, so "
            "some ranks would have none. Use more elements, or smaller batches. To give each rank all elements, "
            "write data.distribute(…, shared=False)"
        )
    if whole and source.elements != INFINITE and source.elements < FEW_FILES * ranks:
        # Too few files for a fair share: every rank reads them all, but keeps only its share of the records.
        reason = next(filter(None, map(disorder, whole.subtree())), "")
        if not reason:
            return whole, dealt(node.graph.dataset(whole, ordered=True), ranks, rank, number)
        if source.elements < ranks:
            raise InputError(
                f"{whole.place}: {source.elements} files are too few for {ranks} ranks. The ranks cannot share the "
                f"files' records either, since {reason}. Write {ranks} files or more; or shuffle only after "
                f"{whole.kind}; or leave the dataset as it is, and call data.distribute(…, exact=False)"
            )
    if source.block == 1 and not source.expanding:
        return node, dealt(node.graph.dataset(node, ordered=True), ranks, rank, number)
    return node, _blocks_of(source, dealt(tf.data.Dataset.range(source.blocks), ranks, rank, number))


def _blocks_of(source: Source, numbers: tf.data.Dataset, piece: Piece | None = None) -> tf.data.Dataset:
    order = None
    if source.shuffle and source.block > 1:
        order = replace(source.shuffle, repeat=None).order(source.elements)
    # A shuffle with a smaller buffer keeps neighbours near each other. For it, blocks keep the original order.
    whole = order and order.buffer == source.elements
    return in_blocks(source.node, source.block, numbers, order if whole else None, piece)
