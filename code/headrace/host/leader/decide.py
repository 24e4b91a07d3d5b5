"""Decide whether the job has failed, from the events so far and from those that are overdue. No threads, no sockets."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.cluster.topology import Topology
from headrace.host.failures import stopped
from headrace.host.inbox import RankSaid, Stamped
from headrace.host.leader.peers import Hosts
from headrace.host.leader.rank_watch import END_S, RankWatch
from headrace.host.leader.stop_request import StopRequest
from headrace.host.leader.watchdog import diagnose_start
from headrace.host.log import HostLog
from headrace.host.mpi.mpirun import ORTED
from headrace.host.services.contract import DataService
from headrace.host.state import HostState
from headrace.job.settings import Settings
from headrace.outcome import RootCause

ORTED_PATIENCE_S = 3.0
"""Seconds to wait for mpirun once an MPI daemon has ended: mpirun knows which rank failed, and reports it later."""


@dataclass(frozen=True)
class Verdict:
    """The job has failed, with this root cause."""

    cause: RootCause
    stalled: bool = False
    """Whether to print the ranks' stacks."""
    ask_ranks: bool = False
    """Whether the trainer's log may name the rank that failed first."""


class Decider:
    """Receives events from the main loop; `verdict` says whether they end the job.

    Args:
        own: this host's state.
        ranks: the number of ranks on all hosts.
        started_as_rank: whether the toolkit's mpirun started this launcher; a signal then comes from mpirun.
    """

    def __init__(
        self, topology: Topology, settings: Settings, service: DataService, own: HostState, hosts: Hosts,
        stop: StopRequest, log: HostLog, ranks: int, started_as_rank: bool = False,
    ) -> None:  # fmt: skip
        self._topology, self._settings, self._service, self._own = topology, settings, service, own
        self._hosts, self._stop, self._log, self._started_as_rank = hosts, stop, log, started_as_rank
        self.ranks = RankWatch(settings, ranks)
        self._orted_failed_at: float | None = None

    def take(self, stamped: Stamped) -> None:
        """Note a rank's log event; ignore other events."""
        at, happening = stamped
        if isinstance(happening, RankSaid):
            self._stop.take_event(happening.event)
            self.ranks.take_event(happening.event, at)

    def is_over(self, now: float) -> bool:
        """Return whether all ranks have finished their scripts and MPI has not ended within `END_S`."""
        over = self.ranks.has_left(now)
        if over:
            self._log.say(f"MPI still runs {END_S:g} s after all ranks have ended their scripts; terminating it")
        return over

    def verdict(self, now: float, stepping: bool) -> Verdict | None:
        """Return why the job has failed, or None.

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
        if self.ranks.has_not_started(now):
            statuses = {self._own.host: self._own.status(), **self._hosts.statuses}
            cause = diagnose_start(self._own.host, self._settings.preflight_timeout_s, statuses)
            return Verdict(cause, stalled=True)
        if self.ranks.has_not_aborted(now):
            return Verdict(RootCause(self._own.host, "trainer", "a rank failed"), ask_ranks=True)
        return None

    def lose(self, host: str) -> RootCause | None:
        """Count a host as lost; return the root cause if the job cannot go on without it."""
        topology, settings, error = self._topology, self._settings, self._hosts.errors[host]
        self._hosts.lost.append(host)
        self._log.event("host_lost", host=host, error=error)
        left = [each.name for each in topology.data_hosts if each.name not in self._hosts.lost]
        waited_s = settings.lease_s if host in self._hosts.statuses else settings.startup_timeout_s
        silence = f"the host has not answered for {waited_s:g} s ({error})"
        if host in {each.name for each in topology.dnn_hosts} or self._service.needs(host):
            return RootCause(host, "host", silence)
        if len(left) < settings.min_data_hosts:
            few = f"{silence}; {len(left)} data hosts are left, min_data_hosts is {settings.min_data_hosts}"
            return RootCause(host, "host", few)
        self._log.say(f"{host} is lost ({silence}); continuing with {', '.join(left)}")
        return None

    def _failed_host(self, now: float) -> RootCause | None:
        """Return another host's failure; if its MPI daemon ended, wait first for mpirun to say why."""
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
        """Return the verdict on a stop request to any host, once the last checkpoint is saved or overdue."""
        own = self._own
        if self._started_as_rank and own.stop_signal:
            return Verdict(ended_by_mpirun(own.host, own.stop_signal), ask_ranks=True)
        requests = {own.host: own.stop_signal}
        requests |= {host: str(status.get("stop_signal", "")) for host, status in self._hosts.present().items()}
        asked = self._stop.due(requests, stepping, now)
        return Verdict(stopped(*asked)) if asked else None


def ended_by_mpirun(host: str, signal_name: str) -> RootCause:
    """Return the root cause of a signal from the toolkit's mpirun, which ends all ranks if one fails or on request."""
    said = f"ended the ranks with {signal_name}: a rank failed (its traceback is in this log), or the job was stopped"
    return RootCause(host, "mpirun", said, signal=signal_name)
