"""The report as one HTML page without scripts or network access, in the reader's light or dark colors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

TEMPLATE = Path(__file__).with_name("page.html")
HOSTS_HEAD = ("run", "host", "group", "instance type", "exit", "CPUs", "CPU", "CPU seconds", "peak memory",
              "network in", "network out", "GPU", "restarts")  # fmt: skip
WORKERS_HEAD = ("run", "worker", "batches", "batches/s", "MB/s", "processors", "worker's share of each rank's batches")
MIB = 2**20


def render(
    summaries: Sequence[Mapping[str, Any]],
    rows: Sequence[tuple[str, Sequence[str]]],
    verdict: Sequence[str],
    notes: Sequence[str],
    pictures: Sequence[tuple[str, str]],
) -> str:
    """Return the page as HTML. `rows` come from `compare_rows`; pictures are SVG elements, each with its caption."""
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(
        TEMPLATE.read_text(encoding="utf-8")
    )
    names = [summary["job_name"] for summary in summaries]
    (_, head), *body = rows
    return template.render(
        title=" and ".join(names),
        subtitle=_subtitle(summaries),
        verdict=verdict,
        head=["", *head],
        rows=body,
        pictures=pictures,
        hosts_head=HOSTS_HEAD,
        hosts=[
            _host(summary["job_name"], name, host) for summary in summaries for name, host in summary["hosts"].items()
        ],
        workers_head=WORKERS_HEAD,
        workers=[
            _worker(summary["job_name"], name, worker)
            for summary in summaries
            for name, worker in summary.get("workers", {}).items()
        ],
        notes=notes,
        summaries=[(summary["job_name"], _as_read(summary)) for summary in summaries],
    )


def _as_read(summary: Mapping[str, Any]) -> str:
    return json.dumps(getattr(summary, "as_read", summary), indent=2, ensure_ascii=False)


def _subtitle(summaries: Sequence[Mapping[str, Any]]) -> str:
    simulated = [summary["job_name"] for summary in summaries if summary.get("simulated")]
    if not simulated:
        return "headrace report"
    return "headrace report · simulated on one machine: " + ", ".join(simulated)


def _host(run: str, name: str, host: Mapping[str, Any]) -> list[str]:
    network, gpu = host.get("network_bytes"), host.get("gpu")
    seconds = ", ".join(f"{kind} {spent:.1f}" for kind, spent in host.get("cpu_s", {}).items() if spent >= 0.05)
    restarts = ", ".join(f"{kind} {count}" for kind, count in host.get("restarts", {}).items() if count)
    code = "lost" if host.get("lost") else str(host.get("exit_code"))
    return [
        run, name, host.get("group", "-"), host.get("instance_type", "-"), code, str(host.get("cpus", "-")),
        f"{host.get('cpu_utilization', 0.0):.0%}", seconds or "-", _mib(host.get("most_memory_bytes")),
        _mib(network and network["in"]), _mib(network and network["out"]),
        f"{gpu['utilization']:.0%} of {gpu['count']}" if gpu else "-", restarts or "-",
    ]  # fmt: skip


def _worker(run: str, name: str, worker: Mapping[str, Any]) -> list[str]:
    figures = [worker.get("batches"), worker.get("batches_per_s"), worker.get("bytes_per_s"), worker.get("processors")]
    batches, per_s, size, processors = figures
    shares = ", ".join(f"rank {rank}: {share:.0%}" for rank, share in worker.get("share", {}).items())
    return [
        run, name, "-" if batches is None else f"{batches:,}", "-" if per_s is None else f"{per_s:,.1f}",
        "-" if size is None else f"{size / 1e6:,.1f}", "-" if processors is None else f"{processors:.2f}",
        shares or "-",
    ]  # fmt: skip


def _mib(size: int | None) -> str:
    return f"{size / MIB:,.0f} MiB" if size else "-"
