"""Read the summary of a finished run, and describe the run in text."""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from headrace.cluster.run_files import RunPaths
from headrace.errors import InputError
from headrace.frameworks import DEFAULT, FRAMEWORKS
from headrace.rank.context import EMPTY_REPORT

Find = Callable[[Path, str | None], Path]
"""Function that returns a run's folder. It gets the folder's path or a job's name, and the AWS region or None."""
MOST = 1e30
"""Upper bound of the numbers in a summary. Larger ones are refused."""
STOPPED = "was stopped by"
OF_THE_LEADER: dict[str, Any] = {
    "framework": DEFAULT.name, "training_script": "", "tf_data_mode": "local", "is_hetero": False,
    "time_to_first_step_s": 0.0, "teardown_s": 0.0,
}  # fmt: skip
OF_A_HOST: dict[str, Any] = {
    "instance_type": "", "cpu_utilization": 0.0, "cpus": 0, "cpu_s": {}, "restarts": {},
    "most_memory_bytes": 0,
}  # fmt: skip
EACH = "*"
"""Key in `LIKE`, the example of a summary. It stands for all keys of a dictionary, such as all host names."""
LIKE: dict[str, Any] = {
    **EMPTY_REPORT,
    **OF_THE_LEADER,
    "job_name": "",
    "outcome": "",
    "step_parts_ms": {"waiting": 0.0, "copying": (None, 0.0), "computing": 0.0},
    "root_cause": (None, {"role": "", "host": "", "message": ""}),
    "hosts": {EACH: {
        "group": "", **OF_A_HOST, "cpu_s": {EACH: 0.0},
        "network_bytes": (None, {"in": 0, "out": 0}), "gpu": (None, {"utilization": 0.0, "count": 0}),
    }},
    "workers": {EACH: {
        "share": (None, {EACH: 0.0}),
        **dict.fromkeys(("batches", "batches_per_s", "bytes_per_s", "processors"), (None, 0.0)),
    }},
}  # fmt: skip
"""An example of a summary: every value has the right type. A pair `(None, value)` marks a value that may be missing."""
_MOVES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Summary(dict[str, Any]):
    """Content of a `summary.json`. Values that the file lacks, as in older runs, are zero or a default."""

    folder: Path
    as_read: dict[str, Any]
    """The content of the file, with nothing added."""


def read_summary(folder: Path) -> Summary:
    """Read the `summary.json` of a run's folder.

    Raises:
        InputError: the file is missing or broken, or is not the summary of a run.
    """
    path = RunPaths(folder).summary
    try:
        read = read_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{folder} is no finished run: cannot read {path.name} ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(read, dict) or not isinstance(read.get("hosts"), dict) or not read["hosts"]:
        raise InputError(f"{path} is not a run's summary: it names no hosts")
    summary = Summary(copy.deepcopy(EMPTY_REPORT | OF_THE_LEADER | {"workers": {}} | read))
    summary.folder, summary.as_read = folder, read
    for name, host in summary["hosts"].items():
        summary["hosts"][name] = OF_A_HOST | host if isinstance(host, dict) else host
    wrong = next(_unlike(summary, LIKE, ""), "")
    if not wrong and summary["input_bound_share"] > 1:
        wrong = f"input_bound_share is {summary['input_bound_share']!r:.50}"
    for name, value in () if wrong else summary["final_metrics"].items():
        if value is not None and (type(value) not in (int, float) or abs(value) > sys.float_info.max):
            wrong = f"final_metrics.{name} is {value!r:.50}"
    if wrong:
        raise InputError(f"{path} is not a run's summary: {wrong}")
    return summary


def read_json(text: str) -> Any:
    """Parse JSON and escape control characters. Raises `ValueError` also for NaN, infinity and half surrogate pairs."""
    value = as_text(json.loads(text, parse_constant=_no_number))
    json.dumps(value, ensure_ascii=False).encode()  # raises on half a surrogate pair
    return value


def as_text(value: Any) -> Any:
    """Escape control characters in a JSON value's texts and keys. These characters could disturb a terminal."""
    if isinstance(value, str):
        return _MOVES.sub(lambda found: f"\\x{ord(found[0]):02x}", value)
    if isinstance(value, list):
        return [as_text(each) for each in value]
    return {as_text(key): as_text(each) for key, each in value.items()} if isinstance(value, dict) else value


def _unlike(value: Any, like: Any, name: str) -> Iterator[str]:
    """Yield `NAME is VALUE` for each value that is missing, out of range, or of another type than in `like`."""
    if isinstance(like, tuple):
        like = None if value is None else like[1]
    kind = (int, float) if isinstance(like, (int, float)) and not isinstance(like, bool) else type(like)
    of_kind = isinstance(value, kind) and isinstance(value, bool) == isinstance(like, bool)
    # An integer may be too long to compute with.
    if not of_kind or (isinstance(value, (int, float)) and not 0 <= value < MOST):
        yield f"{name} is {value!r:.50}"
    elif isinstance(like, dict):
        for key in value if EACH in like else like:
            yield from _unlike(value.get(key), like[EACH if EACH in like else key], f"{name}.{key}".lstrip("."))


def _no_number(said: str) -> None:
    raise ValueError(f"{said} is not a JSON number")


def waited_share(summary: Mapping[str, Any]) -> float | None:
    """Return the share of step time that a run waited for data; None if it is not known."""
    share = float(summary["input_bound_share"])
    return None if not summary["ideal_step_time_ms"] and share in (0, 1) else share


def unlike(summary: Mapping[str, Any], first: Mapping[str, Any]) -> str:
    """Return why the speeds of two runs cannot be compared; empty if both have the same script and batch."""
    script, other = (each.get("training_script") or "an unknown script" for each in (summary, first))
    if script != other:
        return f"it trains {script}, not {other}"
    batch, other_batch = summary["global_batch_size"], first["global_batch_size"]
    return "" if batch == other_batch else f"its global batch has {batch} samples, not {other_batch}"


def was_interrupted(summary: Mapping[str, Any]) -> bool:
    """Return whether a user stopped the run by Ctrl-C or a signal before it was done."""
    return bool(summary.get("interrupted")) and summary["outcome"] != "succeeded"


def accuracy(summary: Mapping[str, Any]) -> float | None:
    """Return the held-out accuracy if it was measured, else the training accuracy, else None."""
    metrics = summary.get("final_metrics", {})
    value = metrics.get("val_accuracy", metrics.get("accuracy"))
    return float(value) if isinstance(value, (int, float)) else None


def rounded(value: float) -> str:
    """Return a time or a rate as text: a whole number, or three significant digits if it is below 10."""
    return f"{value:.0f}" if value >= 10 else f"{value:.3g}"


def short(value: float) -> str:
    """Return a metric as text: with three decimals, or with three significant digits from a million on."""
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
        step_ms, ideal_ms = summary["step_time_ms"]["median"], summary["ideal_step_time_ms"]
        share = waited_share(summary)
        ideal = f"ideal {rounded(ideal_ms)} ms" if ideal_ms else "ideal not measured"
        waiting = "" if share is None else f", {share:.0%} of the time waiting for data"
        speed = f"{rounded(summary['samples_per_s'])} samples/s"
        mean_ms = summary["step_time_ms"]["mean"]  # a few long waits raise the mean, and so the share of waiting
        ideal = f"mean {rounded(mean_ms)} ms; {ideal}" if mean_ms > 1.1 * step_ms else ideal
        lines.append(f"  steps        {summary['steps']} of {rounded(step_ms)} ms (median; {ideal}), {speed}{waiting}")
        lines.append(f"  first step   after {summary['time_to_first_step_s']:.1f} s")
    elif trains and not cause:
        lines.append(
            "  steps        none was measured: did the script train with "
            f"{' or '.join(each.measured_by for each in FRAMEWORKS.values())}?"
        )
    if wrong := [name for name, value in summary.get("final_metrics", {}).items() if value is None]:
        lines.append(f"  not finite   {', '.join(wrong)}: training has diverged, or divided by zero")
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
