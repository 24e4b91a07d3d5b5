"""Counts of the batches that a rank received from each worker, in the file `received-rankN` of the signal folder."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

PREFIX = "received-rank"
WRITE_EVERY_S = 2.0
Counts = Mapping[str, tuple[int, int]]
"""Numbers of received batches and bytes, keyed by the worker's ADDRESS:PORT."""
_sources: list[Callable[[], Counts]] = []


def add_source(source: Callable[[], Counts]) -> None:
    """Register a function that returns this process's counts, which must never decrease. Another thread calls it."""
    _sources.append(source)


class Counter:
    """Counts the batches that several threads receive."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()

    def add(self, server: str, size: int) -> None:
        """Count a batch of `size` bytes from a server."""
        with self._lock:
            batches, total = self._counts.get(server, (0, 0))
            self._counts[server] = batches + 1, total + size

    def counts(self) -> Counts:
        with self._lock:
            return dict(self._counts)


class Receipts:
    """Writes the file with one rank's counts.

    The file holds two readings of the counts: `first`, when the first batches had arrived, and `last`, the latest.
    Rates are computed from their difference. This leaves out the first batches, which come from cold pipelines.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._path = folder / f"{PREFIX}{rank}"
        self._first: dict[str, Any] = {}
        self._written: Counts = {}
        self._next = 0.0

    def look(self, force: bool = False) -> None:
        """Write the counts if they changed, at most every `WRITE_EVERY_S` unless forced. Raises `OSError`."""
        now = time.monotonic()
        if not _sources or (now < self._next and not force):
            return
        self._next = now + WRITE_EVERY_S
        counts = {server: count for source in list(_sources) for server, count in source().items() if count[0]}
        if not counts or counts == self._written:
            return
        last = {"at": now, "from": counts}
        self._first = self._first or last
        partial = self._path.with_name(f".{self._path.name}")
        partial.write_text(json.dumps({"first": self._first, "last": last}), encoding="utf-8")
        partial.replace(self._path)
        self._written = counts


def read(folder: Path) -> dict[str, Any]:
    """Return the records of this host's ranks, by rank. Files that cannot be read are left out."""
    found = {}
    for path in folder.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):
            found[path.name.removeprefix(PREFIX)] = json.loads(path.read_text(encoding="utf-8"))
    return found
