"""Datasets of arrays in memory. Every host gets the arrays once, as files that it maps into memory.

If an array were a constant in a dataset's graph, it would go to the dispatcher, to every worker and through every
optimisation of the graph. That takes seconds for each 100 MB, and fails beyond 2 GB.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from headrace.cluster.run_files import ARRAYS_FOLDER
from headrace.errors import InputError
from headrace.rank.context import TrainerContext
from headrace.tensorflow.compat import data_nest as nest  # treats a list as one tensor, as tf.data does

BLOCK = 256
"""Number of rows that are read together from a mapped file."""
ARRAY = "headrace_array_"
"""Prefix of the names of operations that memory-map an array's file. The array's number follows the prefix."""


def from_arrays(arrays: Any) -> tf.data.Dataset:
    """Return a dataset of the rows of arrays, as `tf.data.Dataset.from_tensor_slices` does; arrays may have any size.

    Args:
        arrays: a NumPy array or tensor of numbers, or a tuple or dictionary of them, of equal length.

    Raises:
        InputError: there are no rows, lengths differ, or an array does not hold numbers.
    """
    given = nest.map_structure(_plain, arrays)
    flat = nest.flatten(given)
    lengths = {len(each) if each.ndim else -1 for each in flat}
    if len(lengths) != 1 or min(lengths) < 1:
        raise InputError(f"from_arrays: arrays have {sorted(lengths)} rows; all need the same number, 1 or more")
    if not all(_is_mappable(each) for each in flat):
        raise InputError("from_arrays takes numbers; use tf.data.Dataset.from_tensor_slices for text")
    if not _is_shared():
        return tf.data.Dataset.from_tensor_slices(given)
    rows, paths = lengths.pop(), [_stored(each) for each in flat]

    def block(number: tf.Tensor) -> tf.data.Dataset:
        first = number * BLOCK
        parts = [
            mapped(str(path), each.dtype, each.shape, place)[first : first + BLOCK]
            for place, (path, each) in enumerate(zip(paths, flat, strict=True))
        ]
        return tf.data.Dataset.from_tensor_slices(nest.pack_sequence_as(given, parts))

    blocks = tf.data.Dataset.range(-(-rows // BLOCK)).flat_map(tf.autograph.experimental.do_not_convert(block))
    return blocks.apply(tf.data.experimental.assert_cardinality(rows))


def _plain(array: Any) -> NDArray[Any]:
    """Return an array as TensorFlow stores it: contiguous, in native byte order. FITS and IDX files are big-endian."""
    plain = np.ascontiguousarray(array)
    return plain if plain.dtype.isnative else plain.astype(plain.dtype.newbyteorder("="))


def mapped(path: str, dtype: Any, shape: Collection[int], place: int) -> tf.Tensor:
    """Return a file as a memory-mapped tensor. Each part of the file is read from the disk only when it is used."""
    return tf.raw_ops.ImmutableConst(dtype=dtype, shape=shape, memory_region_name=path, name=f"{ARRAY}{place}")


def send(graph: Any) -> None:
    """Give all hosts of the job the array files that a dataset's GraphDef reads. Raises `InputError` on failure."""
    paths = {
        node.attr["memory_region_name"].s.decode()
        for function in graph.library.function
        for node in function.node_def
        if node.op == "ImmutableConst"
    }
    if not paths:
        return
    command = [sys.executable, "-m", "headrace.host.control.file_sender"]
    for path in sorted(paths):
        command += [path, Path(path).stem]
    sent = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if sent.returncode:
        raise InputError(f"the arrays did not reach all hosts: {' '.join(sent.stdout.split())[-500:]}")


def _is_shared() -> bool:
    context = TrainerContext.from_environ(os.environ)
    return context.tf_data_mode == "service" or int(os.environ.get("OMPI_COMM_WORLD_SIZE") or 1) > 1


def _is_mappable(array: Any) -> bool:
    try:
        dtype = tf.as_dtype(array.dtype)
    except TypeError:  # the array holds records, or Python objects
        return False
    return (dtype.is_floating or dtype.is_integer or dtype.is_bool) and len(array.shape) > 0


def _stored(array: NDArray[Any]) -> Path:
    """Write an array to a file named by its hash; return the path. If the launcher set TMPDIR, it deletes the file."""
    content = array.reshape(-1).view(np.uint8)
    digest = hashlib.sha256(content.data).hexdigest()
    path = Path(tempfile.gettempdir()) / ARRAYS_FOLDER / f"{digest}.bin"
    if path.is_file() and path.stat().st_size == array.nbytes:
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        array.tofile(partial)
        os.replace(partial, path)
    except OSError as error:
        raise InputError(
            f"{array.nbytes / 2**30:.2f} GiB of arrays cannot be written to {path.parent} ({error.strerror}): "
            "free disk space there, or read the data from files that all hosts see, such as TFRecords"
        ) from error
    return path
