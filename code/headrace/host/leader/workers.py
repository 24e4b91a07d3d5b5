"""Compute how much each worker has delivered to each rank, and how fast, from the counts that the ranks keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Statuses = Mapping[str, Mapping[str, Any]]
"""The hosts' statuses by host name. Another host may send anything, so no field can be trusted."""
RATES = ("batches_per_s", "bytes_per_s")
FIGURES = ("batches", *RATES)


@dataclass(frozen=True)
class _Receipt:
    """One rank's counts of batches and bytes from each server, read at time `at` (in seconds of the rank's clock)."""

    at: float
    counts: Mapping[str, tuple[int, int]]


def workers(names: Mapping[str, str], statuses: Statuses) -> dict[str, Any]:
    """Return a dict from each worker's name (HOST/NAME) to the worker's figures in the summary.

    `batches` is the count since the start. `share` maps each rank to the part of its batches that came from this
    worker, 0 to 1. `batches_per_s` and `bytes_per_s` are sums over all ranks, measured from the first counts
    that each rank wrote. Over gRPC, ranks cannot count their batches: `batches` and both rates are None. `processors`
    is the mean number of processors that the worker's processes kept busy since the first step.

    Args:
        names: maps each worker's ADDRESS:PORT to its HOST/NAME; see `DataService.worker_names`.
    """
    receipts = list(_receipts(statuses))
    zero = {"batches": 0, "batches_per_s": 0.0, "bytes_per_s": 0.0} if receipts else dict.fromkeys(FIGURES)
    found: dict[str, Any] = {
        name: {**zero, "processors": _processors(name, statuses), "share": {}} for name in names.values()
    }
    for rank, first, last in sorted(receipts, key=lambda receipt: (len(receipt[0]), receipt[0])):
        total = sum(batches for batches, _ in last.counts.values())
        for server, (batches, _) in last.counts.items():
            if worker := found.get(names.get(server, "")):
                worker["batches"] += batches
                worker["share"][rank] = round(batches / total, 4) if total else 0.0
                for figure, rate in _rates(first, last, server).items():
                    worker[figure] = round(worker[figure] + rate, 3)
    return found


class WorkersOverTime:
    """Measures how fast each worker delivers batches between two calls of `look`."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self._before: dict[str, _Receipt] = {}

    def look(self, statuses: Statuses) -> dict[str, dict[str, float]]:
        """Return a dict from each worker's name to its rates since the last call; empty at the first call."""
        found: dict[str, dict[str, float]] = {}
        for rank, _, last in _receipts(statuses):
            before, self._before[rank] = self._before.get(rank), last
            if not before:
                continue
            for server in last.counts.keys() & self._names.keys():
                figures = found.setdefault(self._names[server], dict.fromkeys(RATES, 0.0))
                for figure, rate in _rates(before, last, server).items():
                    figures[figure] = round(figures[figure] + rate, 3)
        return found


def _rates(first: _Receipt, last: _Receipt, server: str) -> dict[str, float]:
    over_s = last.at - first.at
    if over_s <= 0:
        return {}
    (batches, size), (batches_before, size_before) = last.counts[server], first.counts.get(server, (0, 0))
    rates = (batches - batches_before) / over_s, (size - size_before) / over_s
    return {figure: max(rate, 0.0) for figure, rate in zip(RATES, rates, strict=True)}


def _receipts(statuses: Statuses) -> Iterator[tuple[str, _Receipt, _Receipt]]:
    """Yield for each rank: its number, the first counts that it wrote, and its latest counts."""
    for status in statuses.values():
        received = status.get("received")
        for rank, said in received.items() if isinstance(received, Mapping) else ():
            try:
                yield str(rank), _receipt(said["first"]), _receipt(said["last"])
            except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
                continue


def _receipt(said: Any) -> _Receipt:
    counts = {str(server): (int(batches), int(size)) for server, (batches, size) in said["from"].items()}
    return _Receipt(float(said["at"]), counts)


def _processors(name: str, statuses: Statuses) -> float | None:
    """Return the mean number of processors that a worker kept busy; None if unknown."""
    host, _, server = name.partition("/")
    try:
        cpu = statuses[host]["cpu"]
        return round(float(cpu["seconds_by_name"][server]) / float(cpu["over_s"]), 3)
    except (LookupError, TypeError, ValueError, ArithmeticError):
        return None
