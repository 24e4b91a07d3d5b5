"""A `TFRecordDataset` as a listing: where its records stand in the files is found out once, so a block begins with one.

Otherwise each block would read the files from their start.
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
from headrace.tensorflow.sharding.dataset_graph import Node

HEADER = struct.Struct("<Q4x")
"""Before each record: its length, and a checksum; another one comes after it."""
CHECKSUM_BYTES = 4
MOST_PLACES = 100_000
"""Remembered of a dataset, and sent to each worker: those of every so many records."""
BUFFERS = 8
"""Parts in which a block is read; what is read beyond its end is less than one of them."""
LEAST_BUFFER, MOST_BUFFER = 4 << 10, 256 << 10
_READERS = re.compile("(TFRecord|TextLine|CSV|FixedLengthRecord)Dataset")
_ONLY_READS = {"Const", "Identity", "NoOp", "TFRecordDataset"}


@dataclass(frozen=True)
class Records:
    """Where the records of some files stand."""

    paths: Sequence[str]
    count: int
    stride: int
    """Of each so many records the first one's place is known."""
    places: Sequence[tuple[int, int]]
    """The number of its file, and the byte at which it begins."""
    bytes: int
    """Of all files."""


@functools.lru_cache(maxsize=64)
def records_of(node: Node) -> Records | None:
    """Where the records of a `TFRecordDataset` are; None of anything else, and of files that cannot be looked at."""
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
    except (InputError, OSError, ValueError):  # compressed, or elsewhere
        return None


def names_of(files: Node) -> list[str]:
    """The names that a dataset of files lists, or reads. Raises `ValueError` where they are no constant."""
    constant = files.graph.behind(files.definition.input[0])
    if constant.op != "Const":
        raise ValueError("no list of names")
    with tf.init_scope():  # also where a function is being made
        names = tf.io.parse_tensor(constant.attr["value"].tensor.SerializeToString(), tf.string)
    return [name.decode() for name in names.numpy().ravel().tolist()]


def bytes_read(listing: Node) -> int:
    """The size of the files that it reads, as far as they are known here."""
    names = set()
    for reader in listing.subtree():
        if any(map(_READERS.match, (reader.op, *reader.function_ops))):
            slices = (each for each in reader.subtree() if each.op == "TensorSliceDataset")
            with contextlib.suppress(ValueError):
                names.update(names_of(next(slices, reader)))
    return sum(map(os.path.getsize, filter(os.path.isfile, names)))


def records_from(records: Records, first: tf.Tensor, count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """A dataset that begins with the last record before `first` whose place is known, and how many come before it.

    Args:
        count: how many are wanted of it.
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
    """The records of an uncompressed TFRecord file, counted by their lengths. Raises `InputError`."""
    return sum(1 for _ in places_of_records(path))


def places_of_records(path: Path) -> Iterator[int]:
    """The byte at which each record of an uncompressed TFRecord file begins. Raises `InputError`."""
    at, size = 0, path.stat().st_size
    with open(path, "rb", buffering=0) as file:  # no more than the lengths is read
        while at < size:
            header = os.pread(file.fileno(), HEADER.size, at)
            length = HEADER.unpack(header)[0] if len(header) == HEADER.size else size
            if at + HEADER.size + length + CHECKSUM_BYTES > size:
                raise InputError(f"{path} is not an uncompressed TFRecord file, or is cut off at byte {at}")
            yield at
            at += HEADER.size + length + CHECKSUM_BYTES
