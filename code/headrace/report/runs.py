"""A finished run, read from its summary and described."""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headrace.cluster.paths import RunPaths
from headrace.errors import InputError
from headrace.frameworks import DEFAULT, FRAMEWORKS
from headrace.rank.context import EMPTY_REPORT

Finder = Callable[[str | None], Callable[[Path], Path]]
"""Function from a region to a function that returns a named run's folder, and fetches it if needed."""
MOST = 1e30
"""Upper bound of every count, time and size."""
STOPPED = "was stopped by"
OF_THE_LEADER: dict[str, Any] = {
    "framework": DEFAULT.name, "training_script": "", "tf_data_mode": "local", "is_hetero": False,
    "time_to_first_step_s": 0.0, "teardown_s": 0.0,
}  # fmt: skip
OF_A_HOST: dict[str, Any] = {
    "instance_type": "", "cpu_utilization": 0.0, "cpus": 0, "cpu_s": {}, "restarts": {},
    "most_memory_bytes": 0,
}  # fmt: skip
OPTIONAL_OF_A_HOST = {"network_bytes": {"in": 0, "out": 0}, "gpu": {"utilization": 0.0, "count": 0}}
"""Parts of a host's record that are None where the host has no such thing or cannot measure it."""

_MOVES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Summary(dict[str, Any]):
    """A `summary.json`. Values that an older run lacks are zero here, and named in `not_told`."""

    not_told: frozenset[str] = frozenset()
    folder: Path
    as_read: dict[str, Any]
    """The content of the file, with nothing added."""


def as_given(_: str | None) -> Callable[[Path], Path]:
    """Return a finder that takes each run's name for its folder, whatever the region."""
    return lambda run: run


def read_summary(folder: Path) -> Summary:
    """Read the `summary.json` of a run's folder.

    Raises:
        InputError: the file is missing, broken, or no run's summary.
    """
    path = RunPaths(folder).summary
    try:
        read = as_text(json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number))
        json.dumps(read, ensure_ascii=False).encode()  # raises on half a surrogate pair, which cannot be written
    except OSError as error:
        raise InputError(f"{folder} is no finished run: cannot read {path.name} ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(read, dict) or not isinstance(read.get("hosts"), dict) or not read["hosts"]:
        raise InputError(f"{path} is not a run's summary: it names no hosts")
    older = EMPTY_REPORT | OF_THE_LEADER
    summary = Summary(copy.deepcopy(older | read))
    summary.folder, summary.as_read = folder, read
    summary.not_told = frozenset(older) - frozenset(read)
    parts = {"waiting": 0.0, "computing": 0.0}
    told = summary["step_parts_ms"]
    if isinstance(told, dict) and told.get("copying") is not None:
        parts["copying"] = 0.0
    _check(summary, older | {"job_name": "", "outcome": "", "step_parts_ms": parts}, str(path))
    if summary["input_bound_share"] > 1:
        raise InputError(f"{path} is not a run's summary: input_bound_share is {summary['input_bound_share']!r:.50}")
    for name, value in summary["final_metrics"].items():
        if value is not None and (type(value) not in (int, float) or abs(value) > sys.float_info.max):
            raise InputError(f"{path} is not a run's summary: final_metrics.{name} is {value!r:.50}")
    if summary.get("root_cause") is not None:
        _check(summary, {"root_cause": {"role": "", "host": "", "message": ""}}, str(path))
    for name, host in summary["hosts"].items():
        if not isinstance(host, dict):
            raise InputError(f"{path} is not a run's summary: hosts.{name} is {host!r:.50}")
        summary["hosts"][name] = OF_A_HOST | host
        _check(summary["hosts"][name], {"group": "", **OF_A_HOST}, f"{path}, {name}")
        for part, like in OPTIONAL_OF_A_HOST.items():
            if host.get(part) is not None:
                _check(host, {part: like}, f"{path}, {name}")
        _check(summary["hosts"][name]["cpu_s"], dict.fromkeys(summary["hosts"][name]["cpu_s"], 0.0), f"{path}, {name}")
    _check_workers(summary, str(path))
    return summary


def as_text(value: Any) -> Any:
    """Return a value with all characters escaped that move a terminal's cursor or change its colors, in names too."""
    if isinstance(value, str):
        return _MOVES.sub(lambda found: f"\\x{ord(found[0]):02x}", value)
    if isinstance(value, list):
        return [as_text(each) for each in value]
    return {as_text(key): as_text(each) for key, each in value.items()} if isinstance(value, dict) else value


def _check_workers(summary: dict[str, Any], where: str) -> None:
    """Check the records of workers, which older runs and runs without the service lack."""
    workers = summary.setdefault("workers", {})
    _check(summary, {"workers": {}}, where)
    for name, worker in workers.items():
        if not isinstance(worker, dict):
            raise InputError(f"{where} is not a run's summary: workers.{name} is {worker!r:.50}")
        share = worker.get("share", {})
        told = {name: 0.0 for name, value in worker.items() if name != "share" and value is not None}
        _check({"share": share, **worker}, {"share": {}, **told}, f"{where}, {name}")
        _check(share, dict.fromkeys(share, 0.0), f"{where}, {name}")


def _check(record: Mapping[str, Any], like: Mapping[str, Any], where: str) -> None:
    """Raise `InputError` if a value is missing, of another kind than in `like`, or a number out of range."""
    for name, example in like.items():
        kind = (int, float) if isinstance(example, (int, float)) and not isinstance(example, bool) else type(example)
        value = record.get(name)
        # An integer may be too long to compute with.
        of_kind = isinstance(value, kind) and isinstance(value, bool) == isinstance(example, bool)
        if not of_kind or (isinstance(value, (int, float)) and not 0 <= value < MOST):
            raise InputError(f"{where} is not a run's summary: {name} is {record.get(name)!r:.50}")
        if isinstance(example, dict):
            _check(record[name], example, where)


def _no_number(said: str) -> None:
    raise ValueError(f"{said} is not a JSON number")


def waited_share(summary: Mapping[str, Any]) -> float | None:
    """Return the share of its steps in which a run waited for data; None: it is not known."""
    share = float(summary["input_bound_share"])
    not_measured = not summary["ideal_step_time_ms"] and share in (0, 1)
    return None if not_measured or "input_bound_share" in getattr(summary, "not_told", ()) else share


def unlike(summary: Mapping[str, Any], first: Mapping[str, Any]) -> str:
    """Return why the speeds of two runs cannot be compared; empty if both have the same script and batch."""
    script, other = (each.get("training_script") or "an unknown script" for each in (summary, first))
    if script != other:
        return f"it trains {script}, not {other}"
    batch, other_batch = summary["global_batch_size"], first["global_batch_size"]
    return "" if batch == other_batch else f"its global batch has {batch} samples, not {other_batch}"


def was_interrupted(summary: Mapping[str, Any]) -> bool:
    """Return whether somebody stopped the run from here, by Ctrl-C or a signal, before it was done."""
    return bool(summary.get("interrupted")) and summary["outcome"] != "succeeded"


def accuracy(summary: Mapping[str, Any]) -> float | None:
    """Return the held-out accuracy if it was measured, else the training accuracy."""
    metrics = summary.get("final_metrics", {})
    value = metrics.get("val_accuracy", metrics.get("accuracy"))
    return float(value) if isinstance(value, (int, float)) else None


def rounded(value: float) -> str:
    """Return a time or a rate for a table cell: a whole number, or three digits if it is small."""
    return f"{value:.0f}" if value >= 10 else f"{value:.3g}"


def short(value: float) -> str:
    """Return a metric for a table cell: three digits after the point, or three in all if it is large."""
    return f"{value:.3f}" if abs(value) < 1e6 else f"{value:.3g}"


def describe_run(summary: Mapping[str, Any], folder: Path, trains: bool = True) -> str:
    """Return a few lines for the end of a run: how it ended, why, how fast it was, where its files are."""
    lines = [f"{summary['job_name']} {summary['outcome']}"]
    cause = summary.get("root_cause")
    if was_interrupted(summary):
        lines = [f"{summary['job_name']} was interrupted"]
    ours = cause and (STOPPED in cause["message"] or cause.get("signal") == "SIGTERM")
    if cause and not (summary.get("interrupted") and ours):
        lines.append(f"  root cause   {cause['role']} on {cause['host']}: {cause['message']}")
    if summary["steps"]:
        step_ms, ideal_ms, share = (
            summary["step_time_ms"]["median"],
            summary["ideal_step_time_ms"],
            waited_share(summary),
        )
        ideal = f"ideal {rounded(ideal_ms)} ms" if ideal_ms else "ideal not measured"
        waiting = "" if share is None else f", {share:.0%} of the time waiting for data"
        speed = f"{rounded(summary['samples_per_s'])} samples/s"
        lines.append(f"  steps        {summary['steps']} of {rounded(step_ms)} ms (median; {ideal}), {speed}{waiting}")
        lines.append(f"  first step   after {summary['time_to_first_step_s']:.1f} s")
    elif trains and not cause:
        lines.append(
            "  steps        none was measured: did the script train, with "
            f"{' or '.join(each.measured_by for each in FRAMEWORKS.values())}?"
        )
    if wrong := [name for name, value in summary.get("final_metrics", {}).items() if value is None]:
        lines.append(f"  no number    {', '.join(wrong)}: training has diverged, or divided by zero")
    if (value := accuracy(summary)) is not None:
        lines.append(f"  accuracy     {short(value)}")
    for host, record in summary["hosts"].items():
        seconds = record.get("cpu_s", {})
        roles = ", ".join(f"{role} {spent:.0f} s" for role, spent in seconds.items() if spent >= 0.5)
        lost = ", lost" if record.get("lost") else ""
        lines.append(
            f"  {host:<12} {record['group']}, exit {record['exit_code']}{lost}, "
            f"CPU {record['cpu_utilization']:.0%}" + (f" ({roles})" if roles else "")
        )
    return "\n".join([*lines, f"  files        {folder}"])
