"""The figures of a running job, as its leader sees them: steps, usage by group, rates by worker, events."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.cluster.topology import Topology
from headrace.host.exporters.exporter import Exporter
from headrace.host.inbox import RankSaid, Stamped
from headrace.host.leader.workers import WorkersOverTime

INTERVAL_S = 5.0
STEP_FIELDS = ("step", "step_ms", "samples_per_s", "input_bound")


class Timeline:
    """Receives events and statuses from the leader's loop and passes figures to the exporters."""

    def __init__(self, topology: Topology, exporters: Sequence[Exporter], worker_names: Mapping[str, str]) -> None:
        self._topology, self._exporters = topology, exporters
        self._workers = WorkersOverTime(worker_names)
        self._next = 0.0
        self._before: dict[str, Any] = {}
        self._restarts: dict[str, Mapping[str, int]] = {}
        self._lost: set[str] = set()

    def take(self, stamped: Stamped) -> None:
        """Export the figures in a rank's step event, or the epoch in its checkpoint event; ignore other events."""
        _, happening = stamped
        if not isinstance(happening, RankSaid):
            return
        event = happening.event
        if event.name == "checkpoint":
            self._put({"event": "checkpoint", "what": f"checkpoint {event.fields.get('epoch', '')}".strip()})
        elif event.name == "step" and (figures := _step(event.fields)):
            self._put(figures)

    def look(self, statuses: Mapping[str, Mapping[str, Any]], lost: Sequence[str], now: float) -> None:
        """Export new restarts and lost hosts at each call, and the figures of groups and workers every `INTERVAL_S`."""
        for host in set(lost) - self._lost:
            self._put({"event": "host_lost", "what": f"{host} lost"})
        self._lost = set(lost)
        for host, status in statuses.items():
            counts = _counts(status.get("restarts"))
            for kind, count in counts.items():
                if count > self._restarts.get(host, {}).get(kind, 0):
                    self._put({"event": "restarted", "what": f"{kind} on {host} restarted"})
            self._restarts[host] = counts
        if now >= self._next:
            self._next = now + INTERVAL_S
            if groups := self._groups(statuses):
                self._put({"groups": groups})
            if workers := self._workers.look(statuses):
                self._put({"workers": workers})

    def end(self, summary: Mapping[str, Any]) -> None:
        """Export the summary at the job's end; wait a moment until all records are written."""
        for exporter in self._exporters:
            exporter.close({"time": time.time(), "summary": summary})

    def _groups(self, statuses: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return each group's figures since the last call, combined from its hosts by `_together`."""
        found: dict[str, list[dict[str, float]]] = {}
        for host in self._topology.hosts:
            now = statuses.get(host.name, {}).get("cpu")
            before, self._before[host.name] = self._before.get(host.name), now
            if now and before and (figures := _since(before, now)):
                found.setdefault(host.group, []).append(figures)
        return {group: _together(figures) for group, figures in found.items()}

    def _put(self, record: Mapping[str, Any]) -> None:
        stamped = {"time": time.time(), **record}
        for exporter in self._exporters:
            exporter.put(stamped)


def _step(fields: Mapping[str, str]) -> dict[str, float]:
    """Return the figures in a step event of rank 0; empty if they are not numbers."""
    try:
        figures = {name: float(fields[name]) for name in STEP_FIELDS}
    except (KeyError, ValueError):
        return {}
    return figures | {"data_wait_ms": figures["step_ms"] * figures["input_bound"]}


def _counts(restarts: Any) -> dict[str, int]:
    """Return the valid counts of restarts, by kind. Another host sent them, so they may be anything."""
    found = restarts if isinstance(restarts, Mapping) else {}
    return {str(kind): count for kind, count in found.items() if isinstance(count, int)}


def _since(before: Any, now: Any) -> dict[str, float]:
    """Return a host's figures between two reports; empty if the reports are malformed or have the same time."""
    try:
        same_count = now.get("since") == before.get("since")  # False once, at the first step: counts begin again there
        return _figures(before, now) if same_count and now["over_s"] > before["over_s"] else {}
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):  # another host may send anything
        return {}


def _figures(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, float]:
    over_s = now["over_s"] - before["over_s"]
    spent_s = sum(now["seconds"].values()) - sum(before["seconds"].values())
    figures = {"cpu_utilization": spent_s / (over_s * now["cpus"]), "memory_bytes": float(now["memory_bytes"])}
    if now.get("network_bytes") and before.get("network_bytes"):
        for way in ("in", "out"):
            figures[f"network_{way}_bytes_per_s"] = (now["network_bytes"][way] - before["network_bytes"][way]) / over_s
    gpu, gpu_before = now.get("gpu"), before.get("gpu")
    if gpu and gpu_before and gpu["samples"] > gpu_before["samples"]:
        figures["gpu_utilization"] = (gpu["busy"] - gpu_before["busy"]) / (gpu["samples"] - gpu_before["samples"])
    return {name: min(max(value, 0.0), 1.0) if "utilization" in name else value for name, value in figures.items()}


def _together(hosts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Combine the figures of a group's hosts: the sum of bytes, the mean of all others."""
    together = {}
    for name in dict.fromkeys(name for each in hosts for name in each):
        values = [each[name] for each in hosts if name in each]
        together[name] = round(sum(values) if "bytes" in name else sum(values) / len(values), 4)
    return together
