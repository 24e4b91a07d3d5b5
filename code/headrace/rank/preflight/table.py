"""The results of a preflight as a table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.terminal.tables import aligned

SLOW_LATENCY_S, SLOW_BYTES_PER_S = 0.005, 100e6
"""Limits of a healthy link. A training job's hosts share a network of 10 Gbit/s or more, so a worse value means a fault
or a wrong network interface."""
SLOWER = 4.0
"""Factor by which a link's bandwidth may be below the median of all links between hosts."""


@dataclass(frozen=True)
class Link:
    """Two ranks, and the measured latency and bandwidth between them."""

    rank: int
    other: int
    host: str
    other_host: str
    latency_s: float
    bytes_per_s: float

    @property
    def is_between_hosts(self) -> bool:
        return self.host != self.other_host

    def is_slow(self, links: Sequence[Link]) -> bool:
        """Return whether this link is between hosts and far slower than it should be, or than the other links are."""
        if not self.is_between_hosts:
            return False
        peers = [link for link in links if link.is_between_hosts]
        if self.latency_s > SLOW_LATENCY_S or self.bytes_per_s < SLOW_BYTES_PER_S:
            return True
        return len(peers) > 2 and self.bytes_per_s * SLOWER < statistics.median(link.bytes_per_s for link in peers)

    def as_fields(self) -> dict[str, Any]:
        """Return the link as fields of an event or a report."""
        return {
            "ranks": f"{self.rank}-{self.other}",
            "from": self.host,
            "to": self.other_host,
            "latency_ms": round(1000 * self.latency_s, 4),
            "mb_per_s": round(self.bytes_per_s / 1e6, 1),
        }


def table(
    ranks: Sequence[Mapping[str, Any]], links: Sequence[Link], collectives: Mapping[str, tuple[int, float]]
) -> list[str]:
    """Return the lines of the table: hosts with ranks, links with latency and bandwidth, collectives with times."""
    hosts: dict[str, list[Mapping[str, Any]]] = {}
    for rank in ranks:
        hosts.setdefault(rank["host"], []).append(rank)
    rows = [("host", "ranks", "processors", "MPI")]
    rows += [
        (host, ", ".join(str(rank["rank"]) for rank in here), str(here[0]["cpus"]), here[0]["mpi"])
        for host, here in hosts.items()
    ]
    lines = [f"preflight: ranks: {len(ranks)}, hosts: {len(hosts)}", *aligned(rows)]
    if links:
        rows = [("link", "ranks", "latency", "bandwidth")]
        for link in links:
            where = f"{link.host} - {link.other_host}" if link.is_between_hosts else f"within {link.host}"
            rate = f"{link.bytes_per_s / 1e6:,.0f} MB/s" + ("   <- slow" if link.is_slow(links) else "")
            rows.append((where, f"{link.rank} - {link.other}", f"{1000 * link.latency_s:.3f} ms", rate))
        lines += ["", *aligned(rows)]
    rows = [("collective", "bytes a rank", "time", "bandwidth")]
    for name, (size, seconds) in collectives.items():
        rows.append((name, f"{size:,}", f"{1000 * seconds:.2f} ms", f"{size / seconds / 1e6:,.0f} MB/s"))
    return [*lines, "", *aligned(rows)]
