"""The leader's `summary.json`: rank 0's report, every host's figures, the outcome, and when each stage was reached."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.cluster.run_files import SUMMARY, TRAINER_REPORT, write_json
from headrace.host.host_run import HostRun
from headrace.host.leader.peers import Hosts
from headrace.host.leader.workers import workers
from headrace.job.limited_by import limited_by
from headrace.outcome import Outcome
from headrace.rank.context import EMPTY_REPORT


@dataclass
class JobTimes:
    """Moments of one job in monotonic seconds; None for a stage that it has not reached."""

    began_at: float
    training_at: float | None = None
    """The start of the trainer."""
    workers_ready_at: float | None = None
    stepping_at: float | None = None
    """The moment at which the trainer was ready for its first step."""
    first_step_at: float | None = None
    training_ended_at: float | None = None

    def train_s(self) -> float | None:
        """Return the seconds from the first step to training's end, or to now; None if training never began."""
        begin = self.first_step_at or self.training_at
        return None if begin is None else self._ended_at() - begin

    def as_json(self) -> dict[str, Any]:
        """Return the summary's times; call it at the end of the teardown."""
        return {
            "time_to_first_step_s": self._since_start(self.first_step_at) or 0.0,
            "startup_s": {
                "trainer_started": self._since_start(self.training_at),
                "workers_ready": self._since_start(self.workers_ready_at),
                "trainer_ready": self._since_start(self.stepping_at),
                "first_step": self._since_start(self.first_step_at),
            },
            "teardown_s": round(time.monotonic() - self._ended_at(), 3),
        }

    def end(self) -> None:
        """Note that training has ended, unless it has been noted before."""
        self.training_ended_at = self._ended_at()

    def _ended_at(self) -> float:
        return self.training_ended_at or time.monotonic()

    def _since_start(self, moment: float | None) -> float | None:
        return None if moment is None else round(moment - self.began_at, 3)


def _take_trainer_report(output_dir: Path, leave_it: bool) -> dict[str, Any]:
    """Return rank 0's report, and remove its file unless `leave_it`; zeros if training did not get that far."""
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
        another_follows: whether a fuller summary follows, so that rank 0's report must stay.
    """
    output_dir = run.plan.paths.output_dir
    report = _take_trainer_report(output_dir, leave_it=another_follows)
    # A first summary is in a hurry, so it uses the published status: a new one takes long on a busy machine.
    own = run.state.published if another_follows else run.state.status()
    record = _build_summary(run, outcome, report, {run.state.host: own, **others.statuses}, others.lost, times)
    try:
        write_json(output_dir / SUMMARY, record)
    except OSError as error:
        run.log.say(f"cannot write {output_dir / SUMMARY}: {error}")
    return record


def _build_summary(
    run: HostRun,
    outcome: Outcome,
    report: Mapping[str, Any],
    statuses: Mapping[str, Mapping[str, Any]],
    lost_hosts: list[str],
    times: JobTimes,
) -> dict[str, Any]:
    """Return the summary, in the order in which people read it. `statuses` are the hosts' latest, by host name."""
    settings, service, hosts = run.plan.settings, run.service, {}
    for host in run.plan.topology.hosts:
        status = statuses.get(host.name, {})
        cpu = status.get("cpu", {})
        hosts[host.name] = {
            "group": host.group,
            "instance_type": host.instance_type,
            "exit_code": outcome.exit_code if host.name not in lost_hosts else None,
            "lost": host.name in lost_hosts,
            "cpus": cpu.get("cpus", 0),
            "cpu_utilization": cpu.get("utilization", 0.0),
            "cpu_s": cpu.get("seconds", {}),
            "most_memory_bytes": cpu.get("most_memory_bytes", 0),
            "memory_total_bytes": cpu.get("memory_total_bytes", 0),
            "network_bytes": cpu.get("network_bytes"),
            "gpu": cpu.get("gpu"),
            "restarts": {kind: status.get("restarts", {}).get(kind, 0) for kind in service.kinds},
        }
    summary = {
        "job_name": settings.job_name,
        "outcome": outcome.status,
        "root_cause": outcome.root_cause and outcome.root_cause.as_json(),
        "framework": settings.framework,
        "training_script": settings.training_script,
        "tf_data_mode": service.mode,
        "is_hetero": run.plan.topology.is_hetero,
        "local_workers": settings.local_workers,
        **report,
        **times.as_json(),
        "hosts": hosts,
        "workers": workers(service.worker_names(), statuses),
    }
    return {**summary, "limited_by": _limited_by(summary)}


def _limited_by(summary: Mapping[str, Any]) -> str:
    """Return what limits the steps; empty if a host's or a rank's figures are invalid."""
    try:
        return limited_by(summary)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
        return ""
