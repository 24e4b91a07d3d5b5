"""Find out, from the kernel's counters, whether the kernel has killed a process for lack of memory.

The parent of a killed process sees only SIGKILL. The kernel counts its kills in a container's memory cgroup (v2's
memory.events, v1's memory.oom_control) and for the whole machine (oom_kill in /proc/vmstat, since Linux 4.13).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.outcome import RootCause

JUST_NOW_S = 10.0
_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_REASON = "the kernel ran out of memory"
_ADVICE = {
    "worker": "fewer images in memory at once: a smaller shuffle or prefetch buffer, no cache() of all data, smaller "
    "batches, fewer parallel calls",
    "rank": "smaller batches and buffers on the trainer; arrays in files instead of memory (TFRecords, or "
    "data.from_arrays, which maps them); fewer processes_per_host",
}


def kernel_kills(root: Path = Path("/")) -> dict[str, int]:
    """Return the kernel's counters of out-of-memory kills, by file. Files that are missing here are left out."""
    found = {}
    for path in (root / "proc/vmstat", *_cgroup_files(root)):
        try:
            count = _COUNT.search(path.read_text())
        except OSError:
            continue
        if count:
            found[str(path)] = int(count[1])
    return found


def _cgroup_files(root: Path) -> list[Path]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found, mount = [], root / "sys/fs/cgroup"
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        # In a container, `group` may be a path that only the machine has. Then the mount's root is the right group.
        places = [group.strip("/"), ""]
        if number == "0" and not controllers:
            found += [mount / place / "memory.events" for place in places]
        elif "memory" in controllers.split(","):
            found += [mount / "memory" / place / "memory.oom_control" for place in places]
    return list(dict.fromkeys(found))


class KernelKills:
    """Watches the kernel's counters of out-of-memory kills.

    Call `just_now` about once a second. The counters have no times, so a kill gets the time of the call that finds it.
    """

    def __init__(
        self, read: Callable[[], Mapping[str, int]] = kernel_kills, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read, self._clock = read, clock
        self._counts = dict(read())
        self._rose: dict[str, float] = {}

    def just_now(self) -> str:
        """Return where a kill was seen in the last `JUST_NOW_S` s: `here` (this container) or `machine`; "" if none."""
        now = self._clock()
        for file, count in self._read().items():
            if count > self._counts.get(file, 0):
                self._rose[file] = now
            self._counts[file] = count
        files = [file for file, at in self._rose.items() if at >= now - JUST_NOW_S]
        if any("cgroup" in file for file in files):
            return "here"
        # If the container has its own counter (memory.events), a kill here raises it: this kill was elsewhere.
        return "machine" if files and not any(file.endswith("memory.events") for file in self._counts) else ""


def explained(cause: RootCause, memory: Mapping[str, Any]) -> RootCause:
    """Return `cause`. If the kernel killed the process for lack of memory, add this reason and a remedy to the message.

    Args:
        memory: the memory report of the cause's host (`HostState.status`): `killed`, from `KernelKills.just_now`, and
            `resident_bytes` by pid.
    """
    if cause.signal != "SIGKILL" or not memory.get("killed") or _REASON in cause.message:
        return cause
    sure = "" if memory["killed"] == "here" else ", perhaps for this process"
    held = {str(pid): size for pid, size in dict(memory.get("resident_bytes") or {}).items() if isinstance(size, int)}
    who = "it" if str(cause.pid) in held else "the largest process here"  # mpirun does not always know a rank's pid
    size = held.get(str(cause.pid), max(held.values(), default=0))
    last = f" ({who} held {size / 2**30:.1f} GiB when last seen)" if size else ""
    advice = _ADVICE.get(cause.process.split("-")[0].rstrip("0123456789"), "lower peak memory use on this host")
    return replace(
        cause,
        message=f"{cause.message}: {_REASON}{sure}{last}. What helps: {advice}; or more memory on this host",
    )
