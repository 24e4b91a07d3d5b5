"""Collect a run's results in its folder: the leader's files, and the exit codes of all hosts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.cluster.run_files import RESULTS, ROOT_CAUSE, RunPaths
from headrace.job.spec import JobSpec
from headrace.outcome import RootCause, describe_return_code
from headrace.rank.context import EMPTY_REPORT


def collect(
    spec: JobSpec, folder: Path, exit_codes: Mapping[str, int], killed: Sequence[str], interrupted: bool
) -> dict[str, Any]:
    """Move the leader's results to the run's folder; return the run's summary, with every host's exit code added."""
    leader = next(host for host, group in spec.hosts().items() if group == spec.dnn_group)
    run = RunPaths(folder)
    results = run.host(leader).output_dir
    for name in RESULTS:
        if (results / name).exists():
            shutil.move(results / name, folder / name)
    try:
        summary: dict[str, Any] = json.loads(run.summary.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        summary = _summary_without_leader(spec, folder, exit_codes, killed)
    lost = [host for host, record in summary["hosts"].items() if record.get("lost")]
    failed = {host: code for host, code in exit_codes.items() if code and host not in lost}
    if failed and summary["outcome"] == "succeeded":
        host, code = next(iter(failed.items()))
        summary["outcome"] = "failed"
        message = f"exited with {code} after the leader had reported success"
        summary["root_cause"] = RootCause(host, "launcher", message, exit_code=code).as_json()
    summary["interrupted"] = interrupted
    summary["simulated"] = True
    for host, code in exit_codes.items():
        summary["hosts"].setdefault(host, {})["exit_code"] = code
    return summary


def _summary_without_leader(
    spec: JobSpec, folder: Path, exit_codes: Mapping[str, int], killed: Sequence[str]
) -> dict[str, Any]:
    """Return the summary of a run whose leader wrote none. Its root cause is from the hosts' files and exit codes."""
    cause = _cause_without_leader(folder, exit_codes, killed)
    hosts = {
        host: {
            "group": group.name,
            "instance_type": group.instance_type,
            "exit_code": exit_codes.get(host),
            "cpu_utilization": 0.0,
            "restarts": {"dispatcher": 0, "worker": 0},
        }
        for host, group in spec.hosts().items()
    }
    return {
        "job_name": spec.job_name,
        "outcome": "failed",
        "root_cause": cause,
        "framework": spec.framework,
        "training_script": spec.training_script,
        "tf_data_mode": spec.tf_data_mode,
        "is_hetero": spec.is_hetero,
        "local_workers": spec.local_workers,
        **EMPTY_REPORT,
        "time_to_first_step_s": 0.0,
        "teardown_s": 0.0,
        "hosts": hosts,
    }


def _cause_without_leader(folder: Path, exit_codes: Mapping[str, int], killed: Sequence[str]) -> dict[str, Any]:
    """Return the root cause of a run whose leader wrote no summary.

    Candidates, best first: (1) a host that failed, was not killed and wrote no root cause, (2) a root cause that a
    host wrote, (3) a killed host, (4) any host. If several hosts qualify, the first of them is taken.
    """
    run = RunPaths(folder)
    words: list[RootCause] = []
    for host, code in exit_codes.items():
        try:
            words.append(RootCause.from_json(json.loads((run.host(host).output_dir / ROOT_CAUSE).read_text())))
        except (OSError, ValueError):
            if not code or host in killed:
                continue
            failure = run.host(host).failure
            said = failure.read_text(encoding="utf-8").splitlines() if failure.is_file() else []
            exit_code, signal, phrase = describe_return_code(code if code < 128 else 128 - code)
            message = said[0] if said else f"{phrase} and left no message"
            return RootCause(host, "launcher", message, None, exit_code, signal, tuple(said[1:])).as_json()
    if words:
        return words[0].as_json()
    culprit = killed[0] if killed else next(iter(exit_codes))
    message = "did not end by itself, so it was killed" if killed else "ended without a summary"
    return RootCause(culprit, "launcher", message, exit_code=exit_codes.get(culprit)).as_json()
