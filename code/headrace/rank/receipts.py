"""What each rank has received from each worker, for the launcher of its host: `received-rankN` in the signal folder."""

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
"""Batches and bytes by the worker's HOST:PORT."""
_sources: list[Callable[[], Counts]] = []


def add_source(source: Callable[[], Counts]) -> None:
    """Something that counts what this process receives; read from another thread, and never decreasing."""
    _sources.append(source)


class Counter:
    """Counts what several threads receive."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()

    def add(self, server: str, size: int) -> None:
        """A batch of so many bytes has come from this server."""
        with self._lock:
            batches, total = self._counts.get(server, (0, 0))
            self._counts[server] = batches + 1, total + size

    def counts(self) -> Counts:
        with self._lock:
            return dict(self._counts)


class Receipts:
    """Keeps one rank's file up to date.

    The file holds what was received until the moments `first`, at which there was something, and `last`, at which there
    was something new. What comes between them tells the rate; before, pipelines were still cold.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._path = folder / f"{PREFIX}{rank}"
        self._first: dict[str, Any] = {}
        self._written: Counts = {}
        self._next = 0.0

    def look(self, force: bool = False) -> None:
        """Write what is new; at most every `WRITE_EVERY_S` unless forced. Raises `OSError`."""
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
    """What the ranks of this host have received, by rank; without what cannot be read."""
    found = {}
    for path in folder.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):
            found[path.name.removeprefix(PREFIX)] = json.loads(path.read_text(encoding="utf-8"))
    return found
