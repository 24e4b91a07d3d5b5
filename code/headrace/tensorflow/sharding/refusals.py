"""Raise an error, before training, for a dataset that cannot be made on other hosts, or cannot be made in parts."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from headrace.errors import InputError
from headrace.tensorflow import compat
from headrace.tensorflow.options import Distribution
from headrace.tensorflow.ranks import collectives
from headrace.tensorflow.sharding import graphdef
from headrace.tensorflow.sharding.dataset_graph import INFINITE, DatasetGraph, Node, users_line
from headrace.tensorflow.sharding.determinism import CHANGING, RANDOM, disorder
from headrace.tensorflow.sharding.sources import bytes_read

PYTHON_OPS = {
    "PyFunc": "tf.py_function or tf.numpy_function",
    "PyFuncStateless": "tf.numpy_function",
    "EagerPyFunc": "tf.py_function",
    "GeneratorDataset": "Dataset.from_generator",
}
MOST_IN_A_GRAPH_BYTES = 64 << 20
"""Limit on a graph's arrays, in bytes, since the dispatcher and every worker get a new graph for each shuffle order."""
AS_IT_IS = "; or leave the dataset as it is, and call data.distribute(…, exact=False)"
SKIPPED_BYTES = 64 << 20
"""Limit on the size in bytes of a dataset's files, if each worker or rank must read them from the start."""
MUCH_PADDING = 0.1
"""The largest share of a pass's batches that may be repeated without a warning."""
_MIXED = "tf.gather(x, tf.random.shuffle(tf.range(tf.shape(x)[0])))"
"""Code that messages suggest for MixUp and CutMix. It shuffles a batch `x`, so that no second dataset is needed."""
_COSTLY_OP = re.compile(r"Decode(Jpeg|Png|Image|Bmp|Gif|AndCrop)|Resize|Conv|ImageProjective|CropAndResize|ReadFile")

_results: weakref.WeakSet[Any] = weakref.WeakSet()
"""The datasets that `data.distribute` and `data.split_by_rank` have returned. They cannot be distributed again."""


def given_out(result: tf.data.Dataset) -> tf.data.Dataset:
    """Record and return the result of `distribute` or `split_by_rank`, so that it is not distributed again."""
    _results.add(result)
    return result


def _is_of_a_result(dataset: Any) -> bool:
    waiting, seen = [dataset], set()
    while waiting:
        each = waiting.pop()
        if each in _results:
            return True
        if id(each) not in seen:
            seen.add(id(each))
            waiting.extend(compat.inputs_of(each))
    return False


def refuse_other_kinds(dataset: Any) -> None:
    """Raise `InputError` unless `dataset` is a `tf.data.Dataset` that was not distributed before."""
    if not tf.executing_eagerly():
        raise InputError(
            "distributing a dataset needs TensorFlow 2's eager execution: remove "
            "tf.compat.v1.disable_eager_execution(), and call this outside of a tf.function"
        )
    if not isinstance(dataset, tf.data.Dataset):
        raise InputError(
            f"expected a tf.data.Dataset, got a {type(dataset).__name__}: make one from arrays by data.from_arrays and "
            ".shuffle(…).batch(…). Do not distribute a PyDataset or a generator. Instead let each rank take every "
            "hvd.size()-th sample, starting from hvd.rank(), and let all ranks take the same number of batches"
        )
    if _is_of_a_result(dataset):
        raise InputError(
            "this dataset comes from data.distribute or data.split_by_rank, and has only this rank's elements. Call "
            "only one of these two functions, once, with the original dataset"
        )


def refuse_elements(dataset: tf.data.Dataset) -> None:
    """Raise `InputError` for elements that cannot leave the worker that makes them."""
    for spec in tf.nest.flatten(dataset.element_spec):
        what = ""
        if isinstance(spec, tf.data.DatasetSpec):
            what = "elements are datasets, such as the windows of Dataset.window: flat_map them into batches of tensors"
        elif isinstance(spec, compat.ExtensionTypeSpec):
            what = f"elements are of an ExtensionType ({type(spec).__qualname__}): make a dict or tuple of its tensors"
        if what:
            raise InputError(f"{users_line()}: the dataset's {what} before data.distribute")


def refuse_python(graph: DatasetGraph) -> None:
    """Raise `InputError` for a dataset that needs Python or resources of this process."""
    for node in graph.sink.subtree():
        edges = [
            edge for name in graphdef.functions(node.definition) for edge in graphdef.captured(node.definition, name)
        ]
        resources = (each for each in map(graph.behind, edges) if each.op == "Const")
        if any(each.attr["dtype"].type == tf.resource.as_datatype_enum for each in resources):
            raise InputError(
                f"{node.place}: its function uses an object that exists only in this process. Use a StaticHashTable "
                "or MutableHashTable, not a DenseHashTable. Do not read an iterator: zip its dataset with this one"
            )
        name = next((PYTHON_OPS[op] for op in (node.definition.op, *sorted(node.function_ops)) if op in PYTHON_OPS), "")
        if name:
            raise InputError(
                f"{node.place}: the dataset runs Python of this process ({name}), which workers on other hosts do not "
                "have: use TensorFlow operations, or write the data to TFRecords first and read those"
            )


def refuse_generator(graph: DatasetGraph) -> None:
    """Raise `InputError` for a Python generator in a shared dataset: all ranks would train on the same elements."""
    for node in graph.sink.subtree():
        if "GeneratorDataset" in node.function_ops:
            raise InputError(
                f"{graph.where}: from_generator: every rank runs the whole generator, so all would train on the same "
                "elements. Let it skip other ranks' elements by hvd.rank() and hvd.size(), and call data.distribute(…, "
                "shared=False). Data hosts cannot run a generator: for data hosts, use TFRecords or data.from_arrays"
            )


def refuse_large_arrays(graph: DatasetGraph) -> None:
    """Raise `InputError` for arrays of numbers that are too large for a graph."""
    for node in graph.sink.subtree():
        if node.op == "TensorSliceDataset":
            constants = [each.attr["value"].tensor for each in map(graph.behind, node.definition.input)]
            size = sum(each.ByteSize() for each in constants if each.dtype != tf.string.as_datatype_enum)
            if size > MOST_IN_A_GRAPH_BYTES:
                raise InputError(
                    f"{node.place}: its arrays have {size >> 20} MiB, too much for a dataset's graph, which goes to "
                    "every worker: use data.from_arrays instead, which gives the arrays to each host once"
                )


def refuse_endings(graph: DatasetGraph, endless: bool, how: Distribution) -> None:
    """Raise `InputError` for a finite dataset if the options in `how` need an endless one."""
    if how.sharding == "off" and (how.exact or how.coordinated) and not endless:
        raise InputError(
            f"{graph.where}: with sharding='off' every worker makes the whole dataset. It is finite, so each element "
            "would come once for every worker. Add .repeat() before .batch(). If coordinated is False, you can "
            "instead omit sharding='off', or add exact=False, which allows repeated elements"
        )


def refuse_unordered(listing: Node) -> None:
    """Raise `InputError` if the dataset `listing` would give different elements on each worker or rank."""
    for node in listing.subtree():
        reason = disorder(node)
        if reason:
            why = f"it would give different elements on each worker or rank, because of {node.kind}: {reason}"
            raise refusal(listing, why, _order_advice(listing, reason))


def refuse_reading_again(listing: Node) -> None:
    """Raise `InputError` if `listing` reads large files, since each block would read them again from the start."""
    size = bytes_read(listing)
    if size > SKIPPED_BYTES:
        raise refusal(
            listing,
            f"each part of the data needs all data before it, so {size >> 20} MiB would be read up to 16 times",
            "Write files.interleave(lambda file: …), with take and skip in the lambda. Or write uncompressed TFRecords "
            "and read them with data.Shards.of_files, or with TFRecordDataset(files) without num_parallel_reads",
        )


def refuse_costly(listing: Node, elements: int) -> None:
    """Raise `InputError` if `listing` is endless or costly: each block would make all earlier elements again."""
    if elements == INFINITE:
        raise refusal(
            listing,
            "the dataset has no end, and its elements cannot be looked up by number",
            "Write Dataset.range(n) in place of an endless counter; or call repeat() later, after this transformation",
        )
    for node in listing.subtree():
        if elements > 1 and any(_COSTLY_OP.search(op) for op in node.function_ops):
            raise refusal(
                listing,
                f"each part of the data needs all earlier elements, and {node.kind} is costly for each element",
                f"Write {listing.kind} before the {node.kind} that reads or decodes",
            )


def refusal(node: Node, why: str, fix: str) -> InputError:
    """Return the error for a transformation that cannot be split. `fix` is a sentence that begins with 'Write'."""
    return InputError(f"{node.place}: {why}. {fix}{AS_IT_IS}")


def warn_of_all_of_it() -> None:
    """Warn that each rank trains on the whole dataset. Print nothing if there is only one rank."""
    if collectives.size() > 1:
        _warn(
            f"{users_line()}: with exact=False, and no data hosts, each of the {collectives.size()} ranks "
            "trains on the whole dataset. To give each rank a part, call dataset.shard(hvd.size(), hvd.rank()), and "
            "then data.distribute(…, shared=False)"
        )


def look_at_size(batches: int, uneven: str, stream: str) -> None:
    """Raise `InputError` if some ranks would have no batch to train on; warn if many batches of a pass are repeated."""
    ranks = collectives.size()
    if ranks > 1 and uneven != "keep" and 0 <= batches < ranks:
        raise InputError(
            f"the dataset {stream!r} has {batches} batches for {ranks} ranks: make batches smaller, use fewer ranks, "
            "or have each rank read its own part: data.split_by_rank"
        )
    again = -batches % ranks
    if uneven == "pad" and again > MUCH_PADDING * batches > 0:
        _warn(
            f"{stream!r} has {batches} batches for {ranks} ranks: each training pass repeats {again} of them, so that "
            "all ranks make equally many steps. Make batches smaller, or use uneven='drop' (uneven='keep' for "
            "held-out data)"
        )


def warn_of_drops(nodes: Iterable[Node]) -> None:
    """Print a warning for each transformation that drops an incomplete batch on every worker or rank."""
    for node in dict.fromkeys(nodes):
        _warn(
            f"{node.place}: drop_remainder leaves out the incomplete last batch of each pass on each worker (on each "
            "rank if there are no data hosts). To keep all elements, omit drop_remainder, or add .repeat() before the "
            "batching and use steps_per_epoch"
        )


def _warn(text: str) -> None:
    if collectives.rank() == 0:
        print(f"warning: {text}", flush=True)


def _order_advice(listing: Node, reason: str) -> str:
    if reason == CHANGING:
        own = "or tf.random.stateless_uniform in a map, with the element's number as seed"
        return f"Write Dataset.random(seed=…), sample_from_datasets(…, seed=…), {own}"
    if reason == RANDOM:
        return (
            "Write a function that uses only the element. For random numbers, call "
            "tf.random.stateless_uniform, with the element's number as seed. Replace rejection_resample by "
            "sample_from_datasets([of_each_class.repeat(), …], weights, seed=1)"
        )
    after = f"Write shuffle after this operation ({listing.kind}), or give the data before it a fixed order: "
    advice = after + "shuffle(…, seed=1, reshuffle_each_iteration=False), list_files(shuffle=False), deterministic=True"
    if listing.op == "ZipDataset":
        advice += f"; for MixUp or CutMix, mix within the batch: {_MIXED} after batch()"
    if listing.op == "TakeDataset":
        advice += "; to end an epoch early, use steps_per_epoch, or call take(n) after data.distribute"
    return advice
