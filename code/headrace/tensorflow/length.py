"""About how many batches a dataset of unknown length has, where that is few: what is filtered, or read from files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.tensorflow.sharding.dataset_graph import INFINITE, UNKNOWN_SIZE, DatasetGraph, Node
from headrace.tensorflow.sharding.dataset_ops import BATCHES, EXPANDING
from headrace.tensorflow.sharding.records import CHECKSUM_BYTES, HEADER, names_of
from headrace.tensorflow.sharding.split_points import Source, is_endless

SAMPLE_BYTES = 1 << 16
"""Read of the largest file, to learn how long its records are."""
MOST_FILES = 1_000


def likely_batches(graph: DatasetGraph, sources: Sequence[Source]) -> int:
    """As TensorFlow knows it, else estimated; `UNKNOWN_SIZE` where nothing can be said, as of files elsewhere."""
    if graph.sink.size != UNKNOWN_SIZE:
        return graph.sink.size
    try:
        return INFINITE if is_endless(graph.sink) else _estimated(graph.sink, sources)
    except Exception:  # whatever is read or left out in another way: an estimate is not worth an error
        return UNKNOWN_SIZE


def _estimated(sink: Node, sources: Sequence[Source]) -> int:
    elements = sum(map(_elements, sources))
    size, times, joined = 1, 1, False
    ends = [source.node for source in sources]  # counted, whatever is below them
    for node in (each for each in sink.subtree(ends) if each not in ends):
        of_unknown = node.op in EXPANDING and all(node is not source.expanding for source in sources)
        joined |= node.op == "ConcatenateDataset"
        changes = node.op in (*BATCHES, "RepeatDataset")
        if of_unknown or (joined and changes) or (len(node.inputs) > 1 and node.op != "ConcatenateDataset"):
            raise ValueError("what makes many of each, or joins several, is not counted here")
        size *= max(int(node.value("batch_size")), 1) if node.op in BATCHES else 1
        times *= max(int(node.value("count")), 1) if node.op == "RepeatDataset" else 1
    return elements * times // size


def _elements(source: Source) -> int:
    """What one pass over a listing gives. Raises `ValueError` where that is not known."""
    if source.elements == INFINITE or source.elements < 0:
        raise ValueError("no end")
    if not source.expanding:
        return source.elements
    sizes = {path: path.stat().st_size for path in _files(source.node)}
    largest = max(sizes, key=lambda path: sizes[path])
    with open(largest, "rb") as file:
        sample = file.read(SAMPLE_BYTES)
    return int(sum(sizes.values()) / _bytes_of_a_record(sample, sizes[largest], source.expanding))


def _files(listing: Node) -> list[Path]:
    while listing.op != "TensorSliceDataset":
        (listing,) = listing.inputs  # ValueError: it is made of several
    paths = [Path(name) for name in names_of(listing)]
    if len(paths) > MOST_FILES:
        raise ValueError("not few")
    return paths


def _bytes_of_a_record(sample: bytes, of_file: int, reader: Node) -> float:
    if any(op.startswith("TFRecordDataset") for op in reader.function_ops):
        (length,) = HEADER.unpack(sample[: HEADER.size]) if len(sample) >= HEADER.size else (0,)
        size = HEADER.size + length + CHECKSUM_BYTES
        if size > of_file:
            raise ValueError("compressed, or no TFRecords")
        return float(size)
    if any(op.startswith(("TextLineDataset", "CSVDataset")) for op in reader.function_ops):
        return len(sample) / max(sample.count(b"\n"), 1)
    raise ValueError("records of an unknown kind")
