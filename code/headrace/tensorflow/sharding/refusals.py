"""What cannot be made on another host, or not in parts: found in a dataset's graph, before training."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import debug_mode
from tensorflow.python.framework.extension_type import ExtensionTypeSpec

from headrace.errors import InputError
from headrace.rank.context import STARTED_IN, folder
from headrace.tensorflow import afterwards, origin
from headrace.tensorflow.options import Distribution
from headrace.tensorflow.ranks import collectives
from headrace.tensorflow.sharding import graphdef
from headrace.tensorflow.sharding.dataset_graph import INFINITE, DatasetGraph, Node
from headrace.tensorflow.sharding.determinism import ANEW, RANDOM, disorder
from headrace.tensorflow.sharding.records import bytes_read

PYTHON_OPS = {
    "PyFunc": "tf.py_function or tf.numpy_function",
    "PyFuncStateless": "tf.numpy_function",
    "EagerPyFunc": "tf.py_function",
    "GeneratorDataset": "Dataset.from_generator",
}

_RESOURCE, _STRING = tf.resource.as_datatype_enum, tf.string.as_datatype_enum
LOOKED_AT_NAMES = 1_000
"""Of a constant's strings: the first of a list of files show whether it has whole names."""
AS_IT_IS = "; or data.distribute(…, exact=False) as it is"
SKIPPED_BYTES = 64 << 20
"""Files that are larger are not read again for each part."""
MUCH_PADDING = 0.1
"""Of a pass's batches."""
_MIXED = "tf.gather(x, tf.random.shuffle(tf.range(tf.shape(x)[0])))"
"""Other elements beside those of a batch, without a second dataset."""
_COSTLY_OP = re.compile(r"Decode(Jpeg|Png|Image|Bmp|Gif|AndCrop)|Resize|Conv|ImageProjective|CropAndResize|ReadFile")


def refuse_other_kinds(dataset: Any) -> None:
    """Raises `InputError` for what is no `tf.data.Dataset`, or none that leaves Python, or is this rank's already."""
    if not tf.executing_eagerly():
        raise InputError(
            "a dataset is distributed before training and outside of functions, with TensorFlow 2's eager execution: "
            "leave tf.compat.v1.disable_eager_execution() out, and call this outside of a tf.function"
        )
    if debug_mode.DEBUG_MODE:
        raise InputError(
            "tf.data.experimental.enable_debug_mode() makes Python of all functions, which no other process has: "
            "leave it out, or debug the dataset before it is distributed"
        )
    if isinstance(dataset, (tuple, list, dict, np.ndarray, tf.Tensor)):
        raise InputError(
            f"this takes a tf.data.Dataset, and got a {type(dataset).__name__}: make one of arrays by "
            "data.from_arrays or tf.data.Dataset.from_tensor_slices, and .shuffle(…).batch(…)"
        )
    if not isinstance(dataset, tf.data.Dataset):
        raise InputError(
            f"this takes a tf.data.Dataset, and got a {type(dataset).__name__}: what runs Python, as a PyDataset or a "
            "generator does, each rank makes itself; have it take every hvd.size()-th sample, from hvd.rank() on, and "
            "the same number of batches on all ranks: else they wait for each other for ever"
        )
    if afterwards.is_of_a_result(dataset):
        raise InputError(
            "this dataset is made from one that data.distribute or data.split_by_rank has returned, and has this "
            "rank's elements alone: give one of them the dataset as it was before, once"
        )


def refuse_elements(dataset: tf.data.Dataset) -> None:
    """Raises `InputError` for elements that cannot leave the worker that makes them."""
    for spec in tf.nest.flatten(dataset.element_spec):
        what = ""
        if isinstance(spec, tf.data.DatasetSpec):
            what = "datasets (window makes some): flat_map them into batches of tensors"
        elif isinstance(spec, ExtensionTypeSpec):
            what = f"of an ExtensionType ({type(spec).__qualname__}): make a dict or a tuple of its tensors"
        if what:
            raise InputError(f"{origin.line_of(dataset)}: its elements are {what}, before data.distribute")


def refuse_python(graph: DatasetGraph) -> None:
    """Raises `InputError` for a dataset that calls into this process."""
    for node in graph.sink.subtree():
        edges = [
            edge for name in graphdef.functions(node.definition) for edge in graphdef.captured(node.definition, name)
        ]
        captured = [graph.behind(edge) for edge in edges]
        if any(each.op == "Const" and each.attr["dtype"].type == _RESOURCE for each in captured):
            raise InputError(
                f"{node.where}: {node.kind}: its function captures what only this process has, a DenseHashTable or an "
                "iterator: use a StaticHashTable or MutableHashTable, or zip the datasets"
            )
        name = next((PYTHON_OPS[op] for op in (node.definition.op, *sorted(node.function_ops)) if op in PYTHON_OPS), "")
        if name:
            raise InputError(
                f"{node.where}: {node.kind}: the dataset runs Python of this process ({name}), which workers on other "
                "hosts do not have: use TensorFlow operations, or write the data to TFRecords first and read those"
            )


def refuse_elsewhere(graph: DatasetGraph) -> None:
    """Raises `InputError` for a file's relative name where the script has changed its folder: workers have not."""
    if (here := folder()) in ("", STARTED_IN):
        return
    texts = (each for each in graphdef.constants_of(graph.definition) if each.dtype == _STRING)
    for name in (each for text in texts for each in tf.make_ndarray(text).ravel()[:LOOKED_AT_NAMES]):
        if name and b"\0" not in name and not os.path.isabs(name) and any(map(os.path.isfile, glob.iglob(name))):
            raise InputError(
                f"{graph.sink.where}: the dataset reads {os.fsdecode(name)!r}, which is a file here, in {here}, where "
                f"the script has gone, while workers look for it where they were started, in {STARTED_IN}: give files "
                "their whole names (os.path.abspath)"
            )


def refuse_generator(graph: DatasetGraph) -> None:
    """Raises `InputError` for a Python generator that several ranks would share: what it gives each is not known."""
    for node in graph.sink.subtree():
        if "GeneratorDataset" in node.function_ops:
            raise InputError(
                f"{node.where}: from_generator: every rank runs the generator from its start, and would train on the "
                "same elements: have it leave out other ranks' (hvd.rank(), hvd.size()), and "
                "data.distribute(…, shared=False). For data hosts, which cannot run it: TFRecords, or data.from_arrays"
            )


def warn_of_shards(graph: DatasetGraph) -> None:
    """Prints a line where the script has taken a host's part by itself: no other host trains on the other parts."""
    hosts = json.loads(os.environ.get("SM_HOSTS") or "[]")
    for node in graph.sink.subtree():
        if node.op == "ShardDataset" and len(hosts) > 1:
            parts, part = int(node.value("num_shards")), int(node.value("index"))
            if parts == len(hosts) and hosts[part : part + 1] == [os.environ.get("SM_CURRENT_HOST")]:
                _warn(
                    f"{node.where}: shard({parts}, {part}) takes this host's part of {parts} hosts, of which some do "
                    "not train: nobody trains on their parts. Leave it out: data.distribute shares the whole"
                )


def warn_of_all_of_it() -> None:
    """Prints a line where each of several ranks reads all of a dataset that is not to be taken apart exactly."""
    if collectives.size() > 1:
        _warn(
            f"{origin.users_line()}: with exact=False, and no data hosts, each of the {collectives.size()} ranks "
            "trains on all of the dataset. Have each take its part: dataset.shard(hvd.size(), hvd.rank()) before, and "
            "shared=False"
        )


def warn_of_padding(batches: int, uneven: str, stream: str) -> None:
    """Prints a line where many of a pass's steps are made with batches that come again."""
    ranks = collectives.size()
    again = -batches % ranks
    if uneven == "pad" and again > MUCH_PADDING * batches > 0:
        _warn(
            f"{stream!r} has {batches} batches for {ranks} ranks: in each pass that trains {again} of them come again, "
            "so that all ranks make equally many steps. Make batches smaller, or say uneven='drop'; of what is held "
            "out, uneven='keep'"
        )


def warn_of_drops(nodes: Iterable[Node]) -> None:
    """Prints a line for each batch of a dataset with an end that drops what is left on every worker or rank."""
    for node in dict.fromkeys(nodes):
        _warn(
            f"{node.where}: {node.kind}: drop_remainder leaves out less than a batch on each worker (without data "
            "hosts, on each rank) in each pass. To leave out nothing: .repeat() before it and steps_per_epoch, or no "
            "drop_remainder"
        )


def _warn(text: str) -> None:
    """One rank says it for all."""
    if collectives.rank() == 0:
        print(f"warning: {text}", flush=True)


def refuse_endings(graph: DatasetGraph, endless: bool, how: Distribution) -> None:
    """Raises `InputError` for a dataset with an end where there must be none."""
    where = f"{graph.sink.where}: " if graph.sink.where != origin.UNKNOWN else ""
    if endless:
        return
    if how.coordinated or how.cross_trainer_cache:
        raise InputError(
            f"{where}coordinated reads and the cross-trainer cache need a dataset without end: "
            "add .repeat() before .batch()"
        )
    if how.sharding == "off" and how.exact:
        raise InputError(
            f"{where}sharding='off' has every worker make the whole dataset: with an end, each element would come once "
            "for every worker. Add .repeat() before .batch(), leave sharding at 'dynamic', or exact=False as it is"
        )


def refuse_unordered(listing: Node) -> None:
    """Raises `InputError` for a listing of which workers would find other elements under the same numbers."""
    for node in listing.subtree():
        reason = disorder(node)
        if reason:
            why = f"would give other elements on every worker or rank, since {reason} ({node.kind} in {node.where})"
            raise refusal(listing, why, _order_advice(listing, reason))


def refuse_reading_again(listing: Node) -> None:
    """Raises `InputError` for a listing of which each part begins with the first byte of large files."""
    size = bytes_read(listing)
    if size > SKIPPED_BYTES:
        raise refusal(
            listing, f"needs the elements before, so that the files' {size >> 20} MiB would be read up to 16 times",
            "files.interleave(lambda file: …), which takes and skips within each file; or TFRecords (uncompressed, "
            "without num_parallel_reads), of which parts are found: data.Shards.of_files, TFRecordDataset(files)",
        )  # fmt: skip


def refuse_costly(listing: Node, elements: int) -> None:
    if elements == INFINITE:
        raise refusal(listing, "of a dataset without end, whose elements cannot be had by their number",
                       "tf.data.Dataset.range(n) in place of what counts, or the same before repeat()")  # fmt: skip
    for node in listing.subtree():
        if elements > 1 and any(_COSTLY_OP.search(op) for op in node.function_ops):
            raise refusal(
                listing, f"needs the elements before, and {node.kind} ({node.where}) makes them at a cost",
                f"list first, then make: {listing.kind} before the {node.kind} that reads or decodes",
            )  # fmt: skip


def refusal(node: Node, why: str, fix: str) -> InputError:
    return InputError(f"{node.where}: {node.kind}: {why}. Write {fix}{AS_IT_IS}")


def _order_advice(listing: Node, reason: str) -> str:
    if reason == ANEW:
        own = "or in a map tf.random.stateless_uniform of a number that is the element's own"
        return f"Dataset.random(seed=…), sample_from_datasets(…, seed=…), {own}"
    if reason == RANDOM:
        return (
            "what decides by the element itself, or by tf.random.stateless_uniform of a number of its own; in place of "
            "rejection_resample: sample_from_datasets([of_each_class.repeat(), …], weights, seed=1)"
        )
    after = f"shuffle after it ({listing.kind}), or fix the order below it: shuffle(…, seed=1, "
    advice = after + "reshuffle_each_iteration=False), list_files(…, shuffle=False), deterministic=True"
    if listing.op == "ZipDataset":
        advice += f"; for MixUp or CutMix, mix within the batch: {_MIXED} after batch()"
    if listing.op == "TakeDataset":
        advice += "; to end an epoch early: steps_per_epoch, or take after data.distribute"
    return advice
