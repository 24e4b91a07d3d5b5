"""Functions that the benchmarks share: flags, pinned processes, real servers, medians, and the final report."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

OUT = Path(__file__).parent / "out"
REPEATS = 5
"""Default number of runs. Results are medians over runs. For a ratio, each run measures both values in turn."""
LIMIT_S = 3600
"""Seconds after which a benchmark ends itself and its processes, in case something hangs."""


def arguments(doc: str, argv: Sequence[str] | None = None, repeats: int = REPEATS) -> argparse.Namespace:
    """Parse `--repeats`, the flag that all benchmarks share, and start the time limit `LIMIT_S`."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=repeats, help="number of runs; results are medians over runs")
    given = parser.parse_args(argv)

    def out_of_time(_: int, frame: FrameType | None) -> None:
        raise SystemExit(f"bench: error: not finished within {LIMIT_S} s; the benchmark was at {frame}")

    signal.signal(signal.SIGALRM, out_of_time)
    signal.alarm(LIMIT_S)
    return given


def per_second(call: Callable[[], object], seconds: float, warm_up: int) -> float:
    """Return the calls per second over `seconds`, after `warm_up` calls that do not count."""
    for _ in range(warm_up):
        call()
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        call()
        count += 1
    return count / (time.perf_counter() - started)


@contextlib.contextmanager
def pinned(*cpus: int) -> Iterator[None]:
    """Pin this thread, and the processes that it starts, to `cpus`. Without `cpus`, change nothing."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(cpus) or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def service(cpus: Sequence[Sequence[int]], **environ_of_last: str) -> Iterator[Any]:
    """Yield a dispatcher with a worker on each set of processors. The last worker also gets `environ_of_last`."""
    from tests.integration.service import Service  # needs TensorFlow

    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as work_dir:
        running = Service(Path(work_dir), workers=0)
        try:
            for place, each in enumerate(cpus, 1):
                with pinned(*each):
                    running.add_worker(**environ_of_last if place == len(cpus) else {})
            running.wait_for_workers()
            yield running
        finally:
            running.stop()


def two_processors() -> tuple[int, int]:
    """Return two processors that this process may use, for the benchmarks to pin to."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        raise SystemExit("bench: error: this needs two processors")
    return allowed[0], allowed[1]


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def leave(name: str, figures: dict[str, float], rows: Sequence[dict[str, object]], **more: object) -> None:
    """Print the rows as a table and the figures below it; write both to `bench/out/NAME.json`."""
    OUT.mkdir(exist_ok=True)
    about = {"machine": f"{os.cpu_count()} × {_processor()}", "python": platform.python_version(), **more}
    rounded = {key: round(value, 4) for key, value in figures.items()}
    text = json.dumps({"figures": rounded, "rows": list(rows), "about": about}, indent=1)
    (OUT / f"{name}.json").write_text(text + "\n")
    print(f"\n{name}\n{table(rows)}")
    for key, value in rounded.items():
        print(f"{key} = {value:g}")
    print(flush=True)


def table(rows: Sequence[dict[str, object]]) -> str:
    """Return a text table of rows, which all have the same keys. Only the first column is aligned left."""
    head = list(rows[0])
    cells = [head, *([_cell(row[key]) for key in head] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    lines = [
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()
