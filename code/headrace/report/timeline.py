"""The course of a run over time, from `metrics.jsonl`: steps, waiting, utilization, batches by worker, incidents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.cluster.run_files import RunPaths
from headrace.report.runs import MOST, read_json

Series = tuple[list[float], list[float]]
"""A list of times, in seconds since the first step, and a list of the values at these times."""


@dataclass
class Timeline:
    """The records of a run's `metrics.jsonl`, by kind. Times are in seconds since the run's first step ended."""

    seconds: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    input_bound_share: list[float] = field(default_factory=list)
    checkpoints: list[float] = field(default_factory=list)
    incidents: list[tuple[float, str]] = field(default_factory=list)
    """Restarts and lost hosts: the time and a description of each."""
    utilization: dict[str, Series] = field(default_factory=dict)
    """Dict from `CPU GROUP` or `GPU GROUP` to the mean utilization of the group's hosts, from 0 to 1."""
    delivered: dict[str, Series] = field(default_factory=dict)
    """Dict from a worker's name to the batches per second that all ranks together received from this worker."""
    unreadable: int = 0
    """Number of unreadable lines. For example, a run that is killed while it writes may cut off its last line."""
    problem: str = ""
    """Reason why the file cannot be read; empty if it can."""


def read_timeline(folder: Path) -> Timeline:
    """Read a run's timeline; it is empty if the run has left none."""
    timeline = Timeline()
    records = list(_records(RunPaths(folder).metrics, timeline))
    steps = [each for each in records if "step_time_ms" in each]
    first = min(steps or records, key=lambda each: each["time"], default={"time": 0.0})  # a short run logs no step
    begin = _first_step(first)
    for each in records:
        try:
            _add(timeline, each, each["time"] - begin)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
            timeline.unreadable += 1
    return timeline


def _first_step(record: Mapping[str, Any]) -> float:
    """Return the time when the first step ended, estimated from a record of later steps."""
    at = float(record["time"])
    try:
        first = at - (float(record["step"]) - 1) * float(record["step_time_ms"]) / 1000
    except (LookupError, TypeError, ValueError, OverflowError):
        return at
    return first if -MOST < first < at else at


def _add(timeline: Timeline, record: Mapping[str, Any], at: float) -> None:
    if "step_time_ms" in record:
        step_ms, share = float(record["step_time_ms"]), float(record.get("input_bound_share", 0.0))
        timeline.seconds.append(at)
        timeline.step_ms.append(step_ms)
        timeline.input_bound_share.append(share)
    elif record.get("event") == "checkpoint":
        timeline.checkpoints.append(at)
    elif record.get("event"):
        timeline.incidents.append((at, str(record.get("what", record["event"]))))
    elif "groups" in record:
        for group, figures in record["groups"].items():
            for kind in ("cpu", "gpu"):
                if isinstance(value := figures.get(f"{kind}_utilization"), (int, float)):
                    _append(timeline.utilization, f"{kind.upper()} {group}", at, float(value))
    elif "workers" in record:
        for name, figures in record["workers"].items():
            _append(timeline.delivered, str(name), at, float(figures["batches_per_s"]))


def _append(curves: dict[str, Series], name: str, at: float, value: float) -> None:
    seconds, values = curves.setdefault(name, ([], []))
    seconds.append(at)
    values.append(value)


def _records(path: Path, timeline: Timeline) -> Iterator[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return
    except OSError as error:
        timeline.problem = str(error.strerror)
        return
    for line in lines:
        try:
            record = read_json(line)
            record["time"] = float(record["time"])
            if not abs(record["time"]) < MOST:
                raise ValueError("the time of the record is out of range")
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            timeline.unreadable += 1
        else:
            yield record
