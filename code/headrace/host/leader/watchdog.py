"""The stall watchdog: find out that the trainer makes no more steps, and name what it waits for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.frameworks import FRAMEWORKS
from headrace.host.mpi.mpirun import MPIRUN, ORTED
from headrace.host.mpi.output import RankLog
from headrace.outcome import RootCause

STILL_S = 10.0
"""If ranks wait for each other and no main thread moves for this many seconds, the ranks count as hung."""
_REDUCERS = " or ".join(each.stall_words.reducer for each in FRAMEWORKS.values() if each.stall_words)


class StallWatchdog:
    """Finds out from the files of `headrace.rank.liveness` that no rank makes progress. Scripts need no change.

    Progress is a step, a batch, a collective or a move: a rank's main thread reaches another place in its code. Until
    the first step, batch or collective, a printed line counts as a move. While an allreduce waits for a rank, moves are
    ignored: that rank may loop for ever. Any change of a file's time counts, even to an earlier one (clocks may jump).
    """

    def __init__(self, signal_dir: Path, timeout_s: float, start_timeout_s: float, now: float) -> None:
        self._signal_dir = signal_dir
        self._timeout_s = timeout_s
        self._start_timeout_s = max(start_timeout_s, timeout_s)
        self._last_progress = now
        self._seen: dict[str, int] = {}
        self._moved: tuple[dict[str, int], int] = ({}, 0)
        self._moved_at = now
        self._deadlocked = False
        self.stepped = False
        """Whether there was a step, a batch or a collective between the last two calls of `stalled_s`."""

    def stalled_s(self, now: float, ranks: RankLog) -> float | None:
        """Return the seconds without progress if they exceed the limit, else None.

        Args:
            ranks: the ranks' log. If it says that all ranks wait for each other, the limit is `STILL_S`.
        """
        seen = self._files("rank")
        moved = (self._files("moved-"), 0 if seen else ranks.lines)
        self.stepped = seen != self._seen
        if moved != self._moved:
            self._moved_at = now
        if self.stepped or (moved != self._moved and not ranks.missing_in_allreduce()):
            self._last_progress = now
        self._seen, self._moved = seen, moved
        silence_s = now - self._last_progress
        self._deadlocked = not self.stepped and ranks.wait_for_each_other and now - self._moved_at > STILL_S
        # Until the first step, batch or collective, ranks import, download and compile: the start-up limit applies.
        limit_s = STILL_S if self._deadlocked else self._timeout_s if seen else self._start_timeout_s
        return silence_s if silence_s > limit_s else None

    @property
    def limit_name(self) -> str:
        """Name of the setting that limits the time without progress, or the reason why the limit is `STILL_S`."""
        if self._deadlocked:
            return f"{_REDUCERS} reports every rank as missing from at least one collective"
        return "stall_timeout_s" if self._seen else "startup_timeout_s"

    def _files(self, prefix: str) -> dict[str, int]:
        found = {}
        with contextlib.suppress(OSError), os.scandir(self._signal_dir) as entries:
            for entry in entries:
                if entry.name.startswith(prefix):
                    found[entry.name] = entry.stat().st_mtime_ns
        return found


def diagnose_start(leader: str, timeout_s: float, statuses: Mapping[str, Mapping[str, Any]]) -> RootCause:
    """Return the root cause if MPI does not start on all ranks: a suspended process of MPI, or else the network."""
    late = f"preflight: MPI has not started on all ranks within {timeout_s:g} s (preflight_timeout_s)"
    for host, status in statuses.items():
        for name in status.get("suspended", []):
            if name in (MPIRUN, ORTED) or name.startswith("rank"):
                return RootCause(host, name, f"{late}, and {name} is suspended")
    advice = "can the dnn hosts reach each other on all TCP ports (security group)? The log has the ranks' stacks"
    return RootCause(leader, "trainer", f"{late}: {advice}")


def diagnose(
    leader: str, silence: str, ranks: RankLog, statuses: Mapping[str, Mapping[str, Any]], waited_for: str
) -> RootCause:
    """Return the root cause of a stall, as the leader sees it: a suspended process, or else what the ranks wait for.

    Args:
        silence: the time without a step, and the setting that limits it, as text.
        waited_for: what ranks wait for (`DataService.waited_for`); empty if no rank reads data through headrace.
    """
    missing = ranks.missing_in_allreduce()
    stalled = f"no step was made for {silence}"
    suspended = [(host, name) for host, status in statuses.items() for name in status.get("suspended", [])]
    if suspended:
        host, name = suspended[0]
        waits = {"rank": "waited for it in an allreduce", "mpirun": "waited"}
        waited = waits.get(name.rstrip("0123456789"), "waited for data" if waited_for else "waited")
        return RootCause(host, name, f"{stalled}: {name} is suspended, and the trainer {waited}")
    if ranks.all_ended:
        why = (
            "the script has ended on all ranks, but their processes have not: look for a non-daemon thread, an exit "
            "handler that never returns, or a program that keeps their stdout or stderr open"
        )
    elif ranks.wait_for_each_other or len(missing) == ranks.world_size > 1:
        where = f" ({ranks.where_they_wait})" if ranks.where_they_wait else ""
        why = (
            f"the ranks wait for each other in different collectives{where}, so they made unequal numbers of steps. "
            "Look for a dataset that ends earlier on one rank (filter and batch it before data.distribute), or for a "
            "branch that only some ranks take"
        )
    elif ranks.waits_for_ends:
        why = ranks.waits_for_ends
    elif missing:
        host, name = missing[0]
        others = ", ".join(name for _, name in missing)
        return RootCause(host, name, f"{stalled}: {others} did not join an allreduce, so the other ranks waited")
    elif waited_for:
        why = f"all ranks waited for {waited_for}"
    else:
        why = (
            "no rank has read data through headrace, so the script itself hangs: the ranks' stacks in the log show "
            "where"
        )
    return RootCause(leader, "trainer", f"{stalled}: {why}")
