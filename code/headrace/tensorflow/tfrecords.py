"""TFRecord files, read without TensorFlow."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

from headrace.errors import InputError

HEADER = struct.Struct("<Q4x")
"""Before each record: its length, and a checksum; another one comes after it."""
CHECKSUM_BYTES = 4


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
