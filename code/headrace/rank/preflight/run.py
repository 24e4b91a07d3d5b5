"""This rank's part of the preflight, from MPI's start to the table that rank 0 prints."""

from __future__ import annotations

import os
import statistics
import string
import sys
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.cluster.run_files import PREFLIGHT_REPORT, write_json
from headrace.events import PREFLIGHT_FAILED, PREFLIGHT_STARTED, format_event
from headrace.job.settings import PREFLIGHT_TIMEOUT_VARIABLE
from headrace.rank.context import TrainerContext
from headrace.terminal.tables import aligned

HOSTS_TAG, HOSTS_BYTES, HOSTS_STAGE = 30, 8 << 20, "the exchange of host names"
PASSED, SLOW_LINK = "preflight_passed", "preflight_slow_link"
SLOW_LATENCY_S, SLOW_BYTES_PER_S = 0.005, 100e6
"""Limits of a healthy link. A training job's hosts share a network of 10 Gbit/s or more, so a worse value means a fault
or a wrong network interface."""
SLOWER = 4.0
"""A link is slow if its bandwidth times this factor is below the median bandwidth of all links between hosts."""


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
        """Return whether a link is slower than fixed limits, or far slower than most others; False within one host."""
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


def run_preflight(environ: Mapping[str, str]) -> None:
    """Test MPI together with all other ranks. If a test fails, end all ranks."""
    # Imported here, before MPI starts, so that the other ranks do not wait for this rank's import of numpy.
    from headrace.rank.preflight.checks import links, try_collectives, try_links
    from headrace.rank.preflight.meeting import Meeting, PreflightError

    started = time.monotonic()
    from mpi4py import MPI

    meeting = Meeting(MPI.COMM_WORLD, float(environ.get(PREFLIGHT_TIMEOUT_VARIABLE) or 60), _host(environ))
    if meeting.rank == 0:
        print(format_event(PREFLIGHT_STARTED, ranks=meeting.size), flush=True)
    try:
        told = meeting.stage(HOSTS_STAGE, range(meeting.size), lambda: _about(environ))
        meeting.hosts = _everywhere(meeting, [told[rank]["host"] for rank in sorted(told)])
        found = []
        for pairs in links(meeting.hosts):
            for (a, b), measured in zip(pairs, try_links(meeting, pairs), strict=True):
                found.append(Link(a, b, meeting.hosts[a], meeting.hosts[b], *measured))
        collectives = try_collectives(meeting)
    except PreflightError as error:
        _fail(meeting, error)
    if meeting.rank == 0:
        _report(environ, [told[rank] for rank in sorted(told)], found, collectives, time.monotonic() - started)


def _host(environ: Mapping[str, str]) -> str:
    return environ.get("SM_CURRENT_HOST") or os.uname().nodename


def _about(environ: Mapping[str, str]) -> dict[str, Any]:
    from mpi4py import MPI

    return {
        "rank": MPI.COMM_WORLD.Get_rank(),
        "host": _host(environ),
        "local_rank": int(environ.get("OMPI_COMM_WORLD_LOCAL_RANK") or 0),
        "pid": os.getpid(),
        "cpus": len(os.sched_getaffinity(0)),
        "mpi": " ".join(MPI.Get_library_version().replace(",", "").split()[:3]),
    }


def _everywhere(meeting: Any, hosts: list[str]) -> list[str]:
    """Send rank 0's list of hosts to all ranks; return that list on every rank."""
    if meeting.rank:
        got: list[str] = meeting.wait([meeting.comm.irecv(HOSTS_BYTES, source=0, tag=HOSTS_TAG)], HOSTS_STAGE)[0]
        return got
    meeting.wait([meeting.comm.isend(hosts, rank, HOSTS_TAG) for rank in range(1, meeting.size)], HOSTS_STAGE)
    return hosts


def _report(
    environ: Mapping[str, str],
    ranks: list[dict[str, Any]],
    found: list[Link],
    collectives: dict[str, tuple[int, float]],
    seconds: float,
) -> None:
    slow = [link for link in found if link.is_slow(found)]
    print("\n".join(table(ranks, found, collectives)), flush=True)
    for link in slow:
        print(format_event(SLOW_LINK, **link.as_fields()), flush=True)
    between = len({rank["host"] for rank in ranks})
    print(format_event(PASSED, ranks=len(ranks), hosts=between, slow_links=len(slow), seconds=seconds), flush=True)
    record = {
        "ranks": ranks,
        "links": [{**link.as_fields(), "slow": link in slow} for link in found],
        "collectives": {name: {"bytes": size, "ms": 1000 * took} for name, (size, took) in collectives.items()},
        "seconds": seconds,
    }
    write_json(TrainerContext.from_environ(environ).output_dir / PREFLIGHT_REPORT, record)


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


def _fail(meeting: Any, error: Any) -> None:
    """Print the error as a `preflight_failed` event, in which the launcher finds the root cause. Then end all ranks."""
    said = urllib.parse.quote(str(error), safe=string.punctuation.replace("%", ""))
    host = meeting.hosts[error.rank]
    print(format_event(PREFLIGHT_FAILED, rank=error.rank, host=host, error=said), flush=True)
    print(f"preflight: {error}", file=sys.stderr, flush=True)
    meeting.comm.Abort(1)
