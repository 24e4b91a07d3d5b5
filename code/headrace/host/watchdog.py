"""The stall watchdog: a trainer that makes no step for too long has hung, and what it waits for is named."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.host.mpi import RankLog
from headrace.outcome import RootCause


class StallWatchdog:
    """Watches for signs of progress: the ranks' progress files, or their output where they write none.

    Files count when they change, whatever their time says: the wall clock may jump.
    """

    def __init__(self, signal_dir: Path, timeout_s: float, start_timeout_s: float, now: float) -> None:
        self._signal_dir = signal_dir
        self._timeout_s = timeout_s
        self._start_timeout_s = max(start_timeout_s, timeout_s)
        self._last_progress = now
        self._seen: dict[str, int] = {}
        self._lines = 0

    def stalled_s(self, now: float, lines: int) -> float | None:
        """Seconds without progress, once they are too many. `lines` is how much the ranks have printed."""
        seen = self._files()
        if seen != self._seen or (not seen and lines != self._lines):
            self._last_progress = now
        self._seen, self._lines = seen, lines
        silence_s = now - self._last_progress
        # Until ranks make steps they import, download and compile, for as long as a start may take.
        limit_s = self._timeout_s if seen else self._start_timeout_s
        return silence_s if silence_s > limit_s else None

    @property
    def limit_name(self) -> str:
        """The setting that bounds the silence just now."""
        return "stall_timeout_s" if self._seen else "startup_timeout_s"

    def _files(self) -> dict[str, int]:
        found = {}
        with contextlib.suppress(OSError), os.scandir(self._signal_dir) as entries:
            for entry in entries:
                if entry.name.startswith("rank"):
                    found[entry.name] = entry.stat().st_mtime_ns
        return found


def diagnose(
    leader: str, silence: str, ranks: RankLog, statuses: Mapping[str, Mapping[str, Any]], uses_service: bool
) -> RootCause:
    """The root cause of a stall, as far as it can be seen from outside: who is suspended, who is waited for.

    `silence` is how long no step was made, as text, and by which setting that is too long.
    """
    suspended = [(host, name) for host, status in statuses.items() for name in status.get("suspended", [])]
    missing = ranks.missing_in_allreduce()
    stalled = f"no step was made for {silence}"
    for host, name in suspended:
        waited = {"rank": " for it in an allreduce", "mpirun": ""}.get(name.rstrip("0123456789"), " for data")
        return RootCause(host, name, f"{stalled}: the trainer waited{waited}, and this process is suspended")
    if missing:
        host, name = missing[0]
        others = ", ".join(name for _, name in missing)
        return RootCause(host, name, f"{stalled}: the other ranks waited for {others} in an allreduce")
    waiting = "data from the tf.data service" if uses_service else "data, or for itself"
    return RootCause(leader, "trainer", f"{stalled}: all ranks waited for {waiting}")
