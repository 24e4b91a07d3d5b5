"""TFRecord files, read without TensorFlow."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from headrace.errors import InputError


def count_records(path: Path) -> int:
    """The records of an uncompressed TFRecord file, counted by their lengths. Raises `InputError`."""
    count, size = 0, path.stat().st_size
    with open(path, "rb") as file:
        while (at := file.tell()) < size:
            header = file.read(12)  # length, and its checksum
            length = struct.unpack("<Q", header[:8])[0] if len(header) == 12 else size
            if at + 16 + length > size:
                raise InputError(f"{path} is not an uncompressed TFRecord file, or is cut off at byte {at}")
            file.seek(length + 4, os.SEEK_CUR)
            count += 1
    return count
