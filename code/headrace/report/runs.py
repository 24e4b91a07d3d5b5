"""One run, told from its summary."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.errors import InputError
from headrace.paths import RunPaths


def read_summary(folder: Path) -> dict[str, Any]:
    """The `summary.json` of a run's folder. Raises `InputError` when it is missing or broken."""
    path = RunPaths(folder).summary
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{folder} is no finished run: cannot read {path.name} ({error.strerror})") from error
    except ValueError as error:
        raise InputError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(summary, dict) or "hosts" not in summary:
        raise InputError(f"{path} is not a run's summary: it names no hosts")
    return summary


def accuracy(summary: Mapping[str, Any]) -> float | None:
    """Held-out accuracy where it was measured, else training accuracy."""
    metrics = summary.get("final_metrics", {})
    value = metrics.get("val_accuracy", metrics.get("accuracy"))
    return None if value is None else float(value)


def describe_run(summary: Mapping[str, Any], folder: Path) -> str:
    """A few lines for the end of a run: how it ended, why, how fast it was, where its files are."""
    lines = [f"{summary['job_name']} {summary['outcome']}"]
    cause = summary.get("root_cause")
    if cause:
        lines.append(f"  root cause   {cause['role']} on {cause['host']}: {cause['message']}")
    if summary["steps"]:
        step_ms, ideal_ms = summary["step_time_ms"]["median"], summary["ideal_step_time_ms"]
        speed, waiting = summary["samples_per_s"], summary["input_bound_share"]
        lines.append(
            f"  steps        {summary['steps']} of {step_ms:.0f} ms (median; ideal {ideal_ms:.0f} ms), "
            f"{speed:.0f} samples/s, {waiting:.0%} of the time waiting for data"
        )
        lines.append(f"  first step   after {summary['time_to_first_step_s']:.1f} s")
    if accuracy(summary) is not None:
        lines.append(f"  accuracy     {accuracy(summary):.3f}")
    for host, record in summary["hosts"].items():
        seconds = record.get("cpu_s", {})
        roles = ", ".join(f"{role} {spent:.0f} s" for role, spent in seconds.items() if spent >= 0.5)
        lost = ", lost" if record.get("lost") else ""
        lines.append(
            f"  {host:<12} {record['group']}, exit {record['exit_code']}{lost}, "
            f"CPU {record['cpu_utilization']:.0%}" + (f" ({roles})" if roles else "")
        )
    return "\n".join([*lines, f"  files        {folder}"])
