"""The leader's `summary.json`: rank 0's report, every host's figures, the outcome, and when each stage was reached."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.cluster.run_files import SUMMARY, TRAINER_REPORT, write_json
from headrace.cluster.topology import Host
from headrace.host.host_run import HostRun
from headrace.host.leader.peers import Hosts
from headrace.host.leader.workers import workers
from headrace.host.services.contract import KINDS
from headrace.job.limited_by import limited_by
from headrace.outcome import Outcome
from headrace.rank.context import EMPTY_REPORT

STAGES = ("trainer_started", "workers_ready", "trainer_ready", "first_step")


class JobTimes:
    """The moments, in monotonic seconds, at which a job reached its stages and its end."""

    def __init__(self, began_at: float) -> None:
        self._began_at = began_at
        self._reached: dict[str, float] = {}

    def reach(self, stage: str, at: float) -> None:
        """Record when the job reached a stage, or its end (`end`). Later calls for the same stage change nothing."""
        self._reached.setdefault(stage, at)

    def has_reached(self, stage: str) -> bool:
        return stage in self._reached

    def train_s(self) -> float | None:
        """Return the seconds of training, from the first step, else from the trainer's start; None without either."""
        begin = self._reached.get("first_step", self._reached.get("trainer_started"))
        return None if begin is None else self._reached["end"] - begin

    def as_json(self) -> dict[str, Any]:
        """Return the summary's times; call it at the end of the teardown."""
        since_s = {stage: round(at - self._began_at, 3) for stage, at in self._reached.items()}
        return {
            "time_to_first_step_s": since_s.get("first_step", 0.0),
            "startup_s": {stage: since_s.get(stage) for stage in STAGES},
            "teardown_s": round(time.monotonic() - self._reached["end"], 3),
        }


def _take_trainer_report(output_dir: Path, leave_it: bool) -> dict[str, Any]:
    """Return rank 0's report, or zeros if there is none. Remove the report's file unless `leave_it`."""
    path = output_dir / TRAINER_REPORT
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        if not leave_it:
            path.unlink()
    except (OSError, ValueError):
        report = {}
    return EMPTY_REPORT | (report if isinstance(report, dict) else {})


def write_summary(
    run: HostRun, others: Hosts, times: JobTimes, outcome: Outcome, *, another_follows: bool = False
) -> dict[str, Any]:
    """Write the leader's `summary.json` and return its content. If it cannot be written, the log says so.

    Args:
        another_follows: True for a first summary. It keeps rank 0's report file for the fuller summary that follows.
    """
    plan, service, output_dir = run.plan, run.service, run.plan.paths.output_dir
    # A first summary must be quick. So it uses the published status: making a new status is slow on a busy machine.
    own = run.state.published if another_follows else run.state.status()
    statuses = {run.state.host: own, **others.statuses}
    summary = {  # in the order in which people read it
        "job_name": plan.settings.job_name,
        "outcome": outcome.status,
        "root_cause": outcome.root_cause and outcome.root_cause.as_json(),
        "framework": plan.settings.framework,
        "training_script": plan.settings.training_script,
        "tf_data_mode": service.mode,
        "is_hetero": plan.topology.is_hetero,
        "local_workers": plan.settings.local_workers,
        **_take_trainer_report(output_dir, leave_it=another_follows),
        **times.as_json(),
        "hosts": {
            host.name: _of_host(host, statuses.get(host.name, {}), outcome, host.name in others.lost)
            for host in plan.topology.hosts
        },
        "workers": workers(service.worker_names(), statuses),
    }
    summary["limited_by"] = _limited_by(summary)
    try:
        write_json(output_dir / SUMMARY, summary)
    except OSError as error:
        run.log.say(f"cannot write {output_dir / SUMMARY}: {error}")
    return summary


def _of_host(host: Host, status: Mapping[str, Any], outcome: Outcome, is_lost: bool) -> dict[str, Any]:
    """Return a host's part of the summary, from its latest status."""
    cpu = status.get("cpu", {})
    return {
        "group": host.group,
        "instance_type": host.instance_type,
        "exit_code": None if is_lost else outcome.exit_code,
        "lost": is_lost,
        "cpus": cpu.get("cpus", 0),
        "cpu_utilization": cpu.get("utilization", 0.0),
        "cpu_s": cpu.get("seconds", {}),
        "most_memory_bytes": cpu.get("most_memory_bytes", 0),
        "memory_total_bytes": cpu.get("memory_total_bytes", 0),
        "network_bytes": cpu.get("network_bytes"),
        "gpu": cpu.get("gpu"),
        "restarts": dict.fromkeys(KINDS, 0) | status.get("restarts", {}),
    }


def _limited_by(summary: Mapping[str, Any]) -> str:
    """Return what limits the steps; empty if a host's or a rank's figures are invalid."""
    try:
        return limited_by(summary)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
        return ""
