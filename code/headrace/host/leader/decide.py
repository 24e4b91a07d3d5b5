"""Decide what the job waits for and whether it has failed, from the events so far and from deadlines.

This module has no threads and no sockets. It writes one file: the one that asks rank 0 for a checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.cluster.run_files import STOP_REQUEST
from headrace.errors import DeadlineError
from headrace.events import (
    CHECKPOINTS_ON_REQUEST,
    PREFLIGHT_FAILED,
    PREFLIGHT_STARTED,
    RANK_FAILED,
    RANK_LEAVING,
    Event,
)
from headrace.frameworks import FRAMEWORKS
from headrace.host.failures import stopped
from headrace.host.host_plan import HostPlan
from headrace.host.inbox import RankSaid, Stamped
from headrace.host.leader.peers import Hosts
from headrace.host.leader.watchdog import diagnose_start
from headrace.host.log import HostLog
from headrace.host.mpi.mpirun import MPIRUN, ORTED
from headrace.host.services.contract import DataService
from headrace.host.state import HostState
from headrace.job.settings import Settings
from headrace.outcome import RootCause

END_S = 30.0
"""Seconds that MPI may take to end after a rank has failed, or after all ranks have logged that they leave MPI."""
ABORT_S = 5.0
"""Seconds that all ranks may take to end after the preflight has failed."""
ORTED_PATIENCE_S = 8.0
"""Seconds before a failed MPI daemon counts as the root cause. Until then, mpirun may report a failed rank."""


@dataclass(frozen=True)
class Verdict:
    """The decision that the job has failed, with its root cause."""

    cause: RootCause
    stalled: bool = False
    """True if the ranks have stalled. The leader then makes them print their stacks before it ends the job."""
    ask_ranks: bool = False
    """Whether to look in the ranks' output for the rank that failed first, and take its failure as the root cause."""


class Decider:
    """Takes events from the main loop. Decides whether the job has failed, and what a starting job still waits for."""

    def __init__(self, plan: HostPlan, service: DataService, own: HostState, hosts: Hosts, log: HostLog) -> None:
        self._plan, self._topology, self._settings = plan, plan.topology, plan.settings
        self._service, self._own, self._hosts, self._log = service, own, hosts, log
        self._stop = StopRequest(plan.paths.signal_dir, plan.settings.stop_grace_s, log)
        self.ranks = RankWatch(plan.settings, plan.world_size)
        self._orted_failed_at: float | None = None

    def take(self, stamped: Stamped) -> None:
        """Record a rank's log event; ignore other events."""
        at, happening = stamped
        if isinstance(happening, RankSaid):
            self._stop.take_event(happening.event)
            self.ranks.take_event(happening.event, at)

    def missing_for_trainer(self) -> list[str]:
        """Return what must be ready before the trainer can start: dnn hosts, their servers, Horovod's installation."""
        statuses = {self._own.host: {"installing": self._own.installing}, **self._hosts.present()}
        installing = [host for host, status in statuses.items() if status.get("installing")]
        installer = FRAMEWORKS[self._settings.framework].installer
        installs = [f"{installer.what} to be installed on {', '.join(installing)}"] if installer and installing else []
        return self._missing_hosts({host.name for host in self._topology.dnn_hosts}) + installs

    def missing_for_data(self, reports: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Return what ranks wait for before they get batches: hosts, or their servers."""
        everyone = {host.name for host in self._topology.hosts}
        return self._missing_hosts(everyone) + self._service.missing(reports, self._hosts.lost)

    def give_up(self, missing: list[str]) -> None:
        """Give up each host that has not answered by the startup deadline: record it as lost, and go on without it.

        Raises:
            DeadlineError: the job cannot go on. The message lists `missing`.
        """
        silent = self._hosts.never_heard()
        left = self._data_hosts_without(silent)
        if silent and not any(map(self._needs, silent)) and len(left) >= self._settings.min_data_hosts:
            for host in silent:
                self.lose(host)
            return
        awaited = " and ".join(missing)
        hints = "".join(f"; {host}: {error}" for host, error in self._hosts.errors.items() if error)
        raise DeadlineError(
            f"The job was not ready within startup_timeout_s={self._settings.startup_timeout_s:g}: still waiting for "
            f"{awaited}{hints}"
        )

    def is_over(self, now: float) -> bool:
        """Return whether to terminate MPI, because all ranks logged over `END_S` seconds ago that they leave it."""
        over = now > self.ranks.ends_by
        if over:
            self._log.say(f"{END_S:g} s after all ranks have ended their scripts, MPI still runs: terminating MPI")
        return over

    def verdict(self, now: float, stepping: bool) -> Verdict | None:
        """Return the verdict if the job has failed, else None.

        Args:
            now: monotonic seconds.
            stepping: whether the ranks have begun to make steps.
        """
        if self._own.failure:
            return Verdict(self._own.failure)
        if cause := self._failed_host(now):
            return Verdict(cause)
        for host in self._hosts.overdue(now):
            if cause := self.lose(host):
                return Verdict(cause)
        if verdict := self._stopped(now, stepping):
            return verdict
        if now > self.ranks.starts_by:
            statuses = {self._own.host: self._own.status(), **self._hosts.statuses}
            cause = diagnose_start(self._own.host, self._settings.preflight_timeout_s, statuses)
            return Verdict(cause, stalled=True)
        if now > self.ranks.aborts_by:
            return Verdict(RootCause(self._own.host, "trainer", "a rank failed"), ask_ranks=True)
        return None

    def lose(self, host: str) -> RootCause | None:
        """Record a host as lost; return the root cause if the job cannot go on without it."""
        settings, error = self._settings, self._hosts.errors[host]
        self._hosts.lost.append(host)
        self._log.event("host_lost", host=host, error=error)
        left = self._data_hosts_without([])
        waited_s = settings.lease_s if host in self._hosts.statuses else settings.startup_timeout_s
        silence = f"the host has not answered for {waited_s:g} s ({error})"
        if self._needs(host):
            return RootCause(host, "host", silence)
        if len(left) < settings.min_data_hosts:
            few = f"{silence}; {len(left)} data hosts are left, min_data_hosts is {settings.min_data_hosts}"
            return RootCause(host, "host", few)
        self._log.say(f"{host} is lost ({silence}); continuing with {', '.join(left)}")
        return None

    def _needs(self, host: str) -> bool:
        """Return whether losing this host ends the job, however many data hosts are left."""
        return host in {each.name for each in self._topology.dnn_hosts} or self._service.needs(host)

    def _data_hosts_without(self, hosts: Collection[str]) -> list[str]:
        """Return the data hosts that are left if `hosts` are lost too."""
        gone = {*hosts, *self._hosts.lost}
        return [each.name for each in self._topology.data_hosts if each.name not in gone]

    def _missing_hosts(self, among: Collection[str]) -> list[str]:
        silent = [host for host in self._hosts.never_heard() if host in among]
        present = self._hosts.present().items()
        starting = [host for host, status in present if host in among and not status.get("servers_started")]
        return ([f"first contact with {', '.join(silent)}"] if silent else []) + (
            [f"the servers on {', '.join(starting)} to start"] if starting else []
        )

    def _failed_host(self, now: float) -> RootCause | None:
        """Return the failure of a host that is not the leader. Ignore a failed MPI daemon for `ORTED_PATIENCE_S`."""
        for status in self._hosts.present().values():
            if not isinstance(status.get("failure"), dict):
                continue
            cause = RootCause.from_json(status["failure"])
            if cause.process != ORTED:
                return cause
            self._orted_failed_at = now if self._orted_failed_at is None else self._orted_failed_at
            if now - self._orted_failed_at >= ORTED_PATIENCE_S:
                return cause
        return None

    def _stopped(self, now: float, stepping: bool) -> Verdict | None:
        """Return the verdict if any host got a stop request and the last checkpoint is saved or overdue; else None."""
        own, signal = self._own, self._own.stop_signal
        if self._plan.rank and signal:  # from the toolkit's mpirun: a rank failed, or the job was stopped
            why = "a rank failed (its traceback is in this log), or the job was stopped"
            cause = RootCause(own.host, MPIRUN, f"ended the ranks with {signal}: {why}", signal=signal)
            return Verdict(cause, ask_ranks=True)
        requests = {own.host: signal}
        requests |= {host: str(status.get("stop_signal", "")) for host, status in self._hosts.present().items()}
        asked = self._stop.due(requests, stepping, now)
        return Verdict(stopped(*asked)) if asked else None


class RankWatch:
    """Deadlines for the start and the end of ranks. MPI itself has none, and Open MPI can hang.

    Args:
        ranks: the number of ranks on all hosts.
    """

    def __init__(self, settings: Settings, ranks: int) -> None:
        self._settings, self._ranks = settings, ranks
        self._left: set[str] = set()
        self.starts_by = math.inf
        """Monotonic time by which the preflight must begin. Infinity while no preflight is awaited."""
        self.ends_by = math.inf
        """Monotonic time by which MPI must end. Infinity until all ranks have logged that they leave MPI."""
        self.aborts_by = math.inf
        """Monotonic time by which all ranks must end. Infinity until a rank or the preflight has failed."""

    def begin(self, now: float) -> None:
        """Set the deadline by which the preflight must begin. The leader calls this when it starts the ranks."""
        if self._settings.preflight:
            self.starts_by = now + self._settings.preflight_timeout_s

    def take_event(self, event: Event, now: float) -> None:
        """Update the deadlines after a log event of a rank."""
        if event.name == PREFLIGHT_STARTED:
            self.starts_by = math.inf
        elif event.name == PREFLIGHT_FAILED:
            self.aborts_by = min(self.aborts_by, now + ABORT_S)
        elif event.name == RANK_FAILED:
            self.rank_failed(now)
        elif event.name == RANK_LEAVING:
            self._left.add(event.fields.get("rank", ""))
            if len(self._left) == self._ranks:
                self.ends_by = min(self.ends_by, now + END_S)

    def rank_failed(self, now: float) -> None:
        """Give all ranks `END_S` seconds to end, because a rank's event or output shows that this rank has failed."""
        self.aborts_by = min(self.aborts_by, now + END_S)


class StopRequest:
    """A stop request (SIGTERM on any host): the job saves one more checkpoint if possible, then ends."""

    def __init__(self, signal_dir: Path, grace_s: float, log: HostLog) -> None:
        self._signal_dir, self._grace_s, self._log = signal_dir, grace_s, log
        self._answers = False
        self._checkpoints = 0
        self._asked_at: float | None = None
        self._checkpoints_before = 0

    def take_event(self, event: Event) -> None:
        """Record, from a rank's log event, that the rank can save checkpoints on request, or that it has saved one."""
        if event.name == CHECKPOINTS_ON_REQUEST:
            self._answers = True
        elif event.name == "checkpoint":
            self._checkpoints += 1

    def due(self, requests: Mapping[str, str], stepping: bool, now: float) -> tuple[str, str] | None:
        """Return a stop request's host and signal. Return None without a request, or while rank 0 saves a checkpoint.

        Args:
            requests: by host, the name of the received signal. An empty string means no signal.
            stepping: whether the ranks have made steps, so that there is something to save.
            now: monotonic seconds.
        """
        asked = next(((host, signal_name) for host, signal_name in requests.items() if signal_name), None)
        if asked is None:
            return None
        can_save = stepping and self._answers
        if self._asked_at is None:
            self._asked_at, self._checkpoints_before = now, self._checkpoints
            if can_save:
                self._log.say(f"{asked[0]} received {asked[1]}: asking rank 0 for a checkpoint, then ending the job")
                (self._signal_dir / STOP_REQUEST).touch()
        saved = self._checkpoints > self._checkpoints_before
        return asked if not can_save or saved or now - self._asked_at > self._grace_s else None
