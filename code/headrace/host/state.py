"""The state of one host, which the host reports to the leader. Only the main loop changes it.

When the leader renews the lease, the host replies with the status that the main loop last published. So the reply
never waits for a busy loop, and the status does not change while it is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from headrace.host.control.channel import Body
from headrace.host.inbox import Inbox, LeaderSaid, ServerSaid, Stamped, StopAsked
from headrace.host.log import LAUNCHER
from headrace.host.services.contract import DataService
from headrace.host.usage.host_usage import ResourceUsage
from headrace.host.usage.oom import KernelKills, explained
from headrace.outcome import Outcome, RootCause

STARTING, STEPPING = "starting", "stepping"


class HostState:
    """This host's state: its first failure, its servers' reports, and the leader's last message."""

    def __init__(
        self,
        host: str,
        usage: ResourceUsage,
        service: DataService,
        inbox: Inbox,
        suspended: Callable[[], list[str]],
        received: Callable[[], Body] = dict,
    ) -> None:
        self.host = host
        self.usage = usage
        self.service = service
        self._kernel_kills = KernelKills()
        self.restarts: dict[str, int] = {}
        """Number of restarts so far, by kind of server."""
        self.servers_started = False
        self.installing = False
        """True while a package that the trainer needs is being installed."""
        self.failure: RootCause | None = None
        self.stop_signal = ""
        """Name of the signal that requested the job's end; empty if none came."""
        self.outcome: Outcome | None = None
        """The job's outcome; None until the leader has sent it."""
        self._inbox = inbox
        self._find_suspended = suspended  # returns names of suspended processes; slow, so not called at each `publish`
        self._find_received = received  # returns the batches that this host's ranks have received
        self._suspended: list[str] = []
        self._received: Body = {}
        self._phase = STARTING
        self._last_heard: float | None = None
        self.dump_requested = False
        """True if the leader has asked for the ranks' stacks and they are not printed yet."""
        self.published: Body = self._status()
        """The status that this host sends in reply to lease renewals."""

    # Called from the control channel's thread

    def renew(self, body: Body) -> Body:
        """Return the published status. `body` is the leader's renewal: the job's phase and, at the end, its outcome."""
        self._inbox.put(LeaderSaid(body))
        return self.published

    # Called from the main loop

    def take(self, stamped: Stamped) -> None:
        """Act on an event, if it concerns this host's state."""
        at, happening = stamped
        if isinstance(happening, ServerSaid):
            self._guarded(lambda: self.service.take_event(happening.event))
        elif isinstance(happening, LeaderSaid):
            self._hear(happening.body, at)
            self._suspended = self._find_suspended()
        elif isinstance(happening, StopAsked):
            self.stop_signal = self.stop_signal or happening.signal_name
        else:
            return
        self.publish()

    def publish(self) -> None:
        """Store the current status. This host sends the stored status in reply to lease renewals."""
        self._received = self._find_received()
        self.published = self._status()

    def hear(self, decision: Mapping[str, Any]) -> None:
        """Pass the leader's decision on to this host's data service."""
        self._guarded(lambda: self.service.hear(decision))

    def fail(self, cause: RootCause) -> None:
        """Record a failure, unless one is recorded already."""
        if self.failure is None:
            self.failure = explained(cause, self.memory())
            self.publish()

    def memory(self) -> Body:
        """Return the report of a recent out-of-memory kill, with the sizes of processes; empty if there was none."""
        killed = self._kernel_kills.just_now()
        return {"killed": killed, "resident_bytes": self.usage.resident_bytes()} if killed else {}

    def silence_s(self, now: float) -> float | None:
        """Return the seconds since the leader's last renewal; None if none has come."""
        return None if self._last_heard is None else now - self._last_heard

    def set_phase(self, phase: str) -> None:
        """Record the job's phase. At the first step, start to count CPU time, so that start-up is left out."""
        if phase == STEPPING and self._phase != STEPPING:
            self._phase = STEPPING
            self.usage.mark()

    def status(self) -> Body:
        """Return this host's current status, in the form that the leader gets."""
        self._suspended, self._received = self._find_suspended(), self._find_received()
        return self._status()

    def _status(self) -> Body:
        return {
            "host": self.host,
            "servers_started": self.servers_started,
            "data": self.service.report(),
            "restarts": self.restarts,
            "suspended": self._suspended,
            "installing": self.installing,
            "stop_signal": self.stop_signal,
            "failure": self.failure and self.failure.as_json(),
            "cpu": self.usage.report(),
            "received": self._received,
            "memory": self.memory(),
        }

    def _hear(self, body: Any, at: float) -> None:
        self._last_heard = at
        self.set_phase(str(body.get("phase", STARTING)))
        self.dump_requested = self.dump_requested or bool(body.get("dump"))
        outcome = body.get("outcome")
        if isinstance(outcome, dict):
            self.usage.freeze()
            self.outcome = self.outcome or Outcome.from_json(outcome)
        if isinstance(body.get("decision"), dict):
            self.hear(body["decision"])

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run code of the data service. If it raises, record the error as this host's failure and go on."""
        try:
            work()
        except Exception as error:
            said = f"the data service failed with {type(error).__name__}: {error}"
            self.fail(RootCause(self.host, LAUNCHER, said, os.getpid(), exit_code=1))
