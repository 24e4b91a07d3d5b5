"""Sources whose reading can begin at any element: rows of tensors, and records of TFRecord files.

The tensors are in a dataset's graph, or in files that are mapped into memory (`headrace.tensorflow.io.arrays`). The
byte offsets of records are found once, so that a block can be read without reading the files from their start.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from headrace.errors import InputError
from headrace.tensorflow.io.arrays import ARRAY, mapped
from headrace.tensorflow.sharding.dataset_graph import Node

HEADER = struct.Struct("<Q4x")
"""The bytes before a record: its length and a checksum. A second checksum follows the record."""
CHECKSUM_BYTES = 4
MOST_PLACES = 100_000
"""Maximum length of a dataset's list of record places. The list is kept in memory and sent to each worker."""
BUFFERS = 8
"""Number of buffers into which a block is read. Only the last buffer may hold bytes from beyond the block."""
LEAST_BUFFER, MOST_BUFFER = 4 << 10, 256 << 10
_READERS = re.compile("(TFRecord|TextLine|CSV|FixedLengthRecord)Dataset")
_ONLY_READS = {"Const", "Identity", "NoOp", "TFRecordDataset"}


def is_arrays(node: Node) -> bool:
    """Return whether a dataset's elements are rows of arrays in files that are mapped into memory."""
    return node.op == "FlatMapDataset" and "ImmutableConst" in node.function_ops


def is_rows(node: Node) -> bool:
    """Return whether a dataset's elements are rows of tensors. The tensors may be in its graph or in mapped files."""
    return node.op == "TensorSliceDataset" or is_arrays(node)


def array_rows(node: Node) -> int:
    """Return the number of rows of a dataset's memory-mapped arrays."""
    return next(each.attr["shape"].shape.dim[0].size for each in node.operations if each.name == f"{ARRAY}0")


def tensors_of(node: Node) -> list[tf.Tensor]:
    """Return tensors whose rows are the elements of the dataset `node`."""
    if not is_arrays(node):
        return node.graph.components(node)
    maps = {each.name: each.attr for each in node.operations}
    tensors = []
    for place in range(len(node.specs)):
        given = maps[f"{ARRAY}{place}"]
        shape = [dimension.size for dimension in given["shape"].shape.dim]
        path = given["memory_region_name"].s.decode()
        tensors.append(mapped(path, tf.as_dtype(given["dtype"].type), shape, place))
    return tensors


def dataset_of(node: Node, tensors: list[tf.Tensor]) -> tf.Tensor:
    """Copy the dataset `node`, but take the rows from `tensors`. Return the copy as a variant tensor."""
    return tf.raw_ops.TensorSliceDataset(components=tensors, output_shapes=[spec.shape for spec in node.specs])


@dataclass(frozen=True)
class Records:
    """The places (file and byte offset) of records in the TFRecord files of a dataset."""

    paths: Sequence[str]
    count: int
    stride: int
    """Number of records from one entry of `places` to the next."""
    places: Sequence[tuple[int, int]]
    """The file's number and the record's offset in bytes, for every `stride`-th record."""
    bytes: int
    """The size of all files together."""


@functools.lru_cache(maxsize=64)
def records_of(node: Node) -> Records | None:
    """Return the places of a `TFRecordDataset`'s records; None for other datasets, and for unreadable files."""
    if node.op != "FlatMapDataset" or node.inputs[0].op != "TensorSliceDataset" or node.function_ops != _ONLY_READS:
        return None
    count, stride, places = 0, 1, []
    try:
        paths = [Path(name) for name in names_of(node.inputs[0])]
        for number, path in enumerate(paths):
            for place in places_of_records(path):
                if count % stride == 0:
                    places.append((number, place))
                count += 1
                if len(places) > MOST_PLACES:
                    stride, places = stride * 2, places[::2]
        return Records([*map(str, paths)], count, stride, places, sum(path.stat().st_size for path in paths))
    except (InputError, OSError, ValueError):  # the files are compressed, or not on this host
        return None


def names_of(files: Node) -> list[str]:
    """Return the file names that a dataset lists or reads. Raises `ValueError` if they are not a constant."""
    constant = files.graph.behind(files.definition.input[0])
    if constant.op != "Const":
        raise ValueError("no list of names")
    with tf.init_scope():  # the names are needed now, even while a function is traced
        names = tf.io.parse_tensor(constant.attr["value"].tensor.SerializeToString(), tf.string)
    return [name.decode() for name in names.numpy().ravel().tolist()]


def bytes_read(listing: Node) -> int:
    """Return the total size in bytes of the files that a dataset reads. Files that this host lacks are not counted."""
    names = set()
    for reader in listing.subtree():
        if any(map(_READERS.match, (reader.op, *reader.function_ops))):
            slices = (each for each in reader.subtree() if each.op == "TensorSliceDataset")
            with contextlib.suppress(ValueError):
                names.update(names_of(next(slices, reader)))
    return sum(map(os.path.getsize, filter(os.path.isfile, names)))


def records_from(records: Records, first: tf.Tensor, count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return a variant dataset that begins at record `first` or earlier, and how many of its records precede `first`.

    Args:
        count: number of records that the caller wants, from `first` on.
    """
    known = tf.minimum(first // records.stride, len(records.places) - 1)
    place = tf.gather(tf.constant(records.places, tf.int64), known)
    paths = tf.constant(records.paths)[place[0] :]
    part = count * (records.bytes // records.count) // BUFFERS
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=paths,
        compression_type="",
        buffer_size=tf.clip_by_value(part, LEAST_BUFFER, MOST_BUFFER),
        byte_offsets=tf.concat([place[1:], tf.zeros([tf.size(paths) - 1], tf.int64)], axis=0),
    )
    return variant, first - known * records.stride


def count_records(path: Path) -> int:
    """Return the number of records in an uncompressed TFRecord file. Only lengths are read. Raises `InputError`."""
    return sum(1 for _ in places_of_records(path))


def places_of_records(path: Path) -> Iterator[int]:
    """Yield the offset, in bytes, of each record in an uncompressed TFRecord file. Raises `InputError`."""
    at, size = 0, path.stat().st_size
    with open(path, "rb", buffering=0) as file:  # only the lengths are read
        while at < size:
            header = os.pread(file.fileno(), HEADER.size, at)
            length = HEADER.unpack(header)[0] if len(header) == HEADER.size else size
            if at + HEADER.size + length + CHECKSUM_BYTES > size:
                raise InputError(f"{path} is not an uncompressed TFRecord file, or is cut off at byte {at}")
            yield at
            at += HEADER.size + length + CHECKSUM_BYTES
