"""The use of this host's CPU time, memory, network and GPUs by the launcher's children."""

from __future__ import annotations

import collections
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import psutil

from headrace.host.usage.gpus import Gpus
from headrace.linux.processes import tree

Child = tuple[str, str]
"""Kind and name of a child process."""
SAMPLE_INTERVAL_S = 0.5
REPORTED_SIZES = 32
SCAN_INTERVAL_S = 5.0
"""Seconds between searches for new descendants. A search reads all processes; a sample reads only known ones."""


class ResourceUsage:
    """Measures memory, and CPU seconds by kind of child, from `mark` to `freeze`. Ended children count too.

    Args:
        roots: function that returns kind, name and pid of every child that runs now.
        own_network: whether this host's network is its own; simulated hosts may share the machine's.
        gpus: the figures of the GPUs to include in reports; None if there are none.
    """

    def __init__(
        self, roots: Callable[[], Iterable[tuple[str, str, int]]], own_network: bool = False, gpus: Gpus | None = None
    ) -> None:
        self._roots, self._own_network, self._gpus = roots, own_network, gpus
        self._network_base = self._network()
        self._memory_bytes = self._most_memory = 0
        self._seen: dict[tuple[int, float], tuple[Child, float]] = {}
        self._resident: dict[int, tuple[float, int]] = {}
        self._base: dict[Child, float] = {}
        self._since = time.monotonic()
        self._frozen: dict[str, Any] | None = None
        self._next_sample = self._next_scan = 0.0
        self._processes: list[tuple[Child, psutil.Process]] = []

    def sample(self, force: bool = False) -> None:
        """Read all children's CPU times and memory, at most once per `SAMPLE_INTERVAL_S`. `force` lifts this limit."""
        now = time.monotonic()
        if now < self._next_sample and not force:
            return
        self._next_sample = now + SAMPLE_INTERVAL_S
        if now >= self._next_scan or force:
            self._next_scan = now + SCAN_INTERVAL_S
            self._processes = [((kind, name), each) for kind, name, pid in self._roots() for each in tree(pid)]
        self._memory_bytes = 0
        for child, process in self._processes:
            try:
                key, times = (process.pid, process.create_time()), process.cpu_times()
                size = process.memory_info().rss
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            self._seen[key] = (child, max(times.user + times.system, self._seen.get(key, (child, 0.0))[1]))
            if size:
                self._resident[process.pid] = (now, size)
                self._memory_bytes += size
        lately = now - 2 * SCAN_INTERVAL_S
        self._resident = {pid: seen for pid, seen in self._resident.items() if seen[0] >= lately}
        self._most_memory = max(self._most_memory, self._memory_bytes)

    def mark(self) -> None:
        """Start counting from zero, so that start-up is left out."""
        self.sample(force=True)
        self._base, self._network_base, self._most_memory = self._totals(), self._network(), 0
        if self._gpus:
            self._gpus.mark()
        self._since = time.monotonic()

    def freeze(self) -> None:
        """Stop counting, so that teardown is left out."""
        if self._frozen is None:
            self.sample(force=True)
            self._frozen = self.report()

    def report(self) -> dict[str, Any]:
        """Return what the host has used since `mark`. `Gpus.report` explains the field `gpu`. The other fields are:

        `utilization`: used share of the host's `cpus`, 0 to 1. `seconds`: CPU seconds by kind of child (`worker`, …).
        `seconds_by_name`: the same by child. `since`: monotonic time of `mark`. `over_s`: seconds since then.
        `memory_bytes`: sum of the children's resident sizes. Memory that children share counts once for each child.
        `most_memory_bytes`: the largest `memory_bytes` since `mark`. `memory_total_bytes`: the machine's memory.
        `network_bytes`: bytes `in` and `out`; None if hosts share the network.
        """
        if self._frozen:
            return self._frozen
        elapsed_s = max(time.monotonic() - self._since, 1e-3)
        seconds: dict[str, float] = {}
        by_name: dict[str, float] = {}
        for (kind, name), total in self._totals().items():
            spent = total - self._base.get((kind, name), 0.0)
            seconds[kind] = round(seconds.get(kind, 0.0) + spent, 3)
            by_name[name] = round(spent, 3)
        cpus = len(os.sched_getaffinity(0))  # the toolkit's SM_NUM_CPUS ignores affinity
        utilization = sum(seconds.values()) / (elapsed_s * cpus)
        now, base = self._network(), self._network_base
        return {
            "utilization": round(min(utilization, 1.0), 4),
            "cpus": cpus,
            "seconds": seconds,
            "seconds_by_name": by_name,
            "since": self._since,
            "over_s": round(elapsed_s, 3),
            "memory_bytes": self._memory_bytes,
            "most_memory_bytes": self._most_memory,
            "memory_total_bytes": psutil.virtual_memory().total,
            "network_bytes": {"in": now[0] - base[0], "out": now[1] - base[1]} if now and base else None,
            "gpu": self._gpus.report() if self._gpus else None,
        }

    def resident_bytes(self) -> dict[str, int]:
        """Return a dict from pid to resident bytes, as last seen, for the largest processes."""
        sizes = sorted(((size, pid) for pid, (_, size) in self._resident.items()), reverse=True)
        return {str(pid): size for size, pid in sizes[:REPORTED_SIZES]}

    def _network(self) -> tuple[int, int] | None:
        """Return the bytes received and sent so far, without loopback; None if other hosts share the network."""
        if not self._own_network:
            return None
        cards = [each for name, each in psutil.net_io_counters(pernic=True).items() if name != "lo"]
        return sum(each.bytes_recv for each in cards), sum(each.bytes_sent for each in cards)

    def _totals(self) -> dict[Child, float]:
        totals: dict[Child, float] = collections.defaultdict(float)
        for child, seconds in self._seen.values():
            totals[child] += seconds
        return dict(totals)
