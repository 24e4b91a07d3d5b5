"""What one host knows of itself, shared between its main loop and its control channel. Thread-safe."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from headrace.events import Event
from headrace.host.control import Body
from headrace.host.memory import KernelKills, explained
from headrace.host.usage import HostUsage
from headrace.outcome import Outcome, RootCause

STARTING, STEPPING = "starting", "stepping"
WORKER_OFFERS = "worker_offers"
"""The event with which a worker says by which protocol it can send batches, before it does anything else."""


class HostState:
    """Readiness, first failure, and what the leader last said."""

    def __init__(self, host: str, usage: HostUsage, wake: threading.Event, suspended: Callable[[], list[str]]) -> None:
        self.host = host
        self.usage = usage
        self._wake = wake
        self._lock = threading.Lock()
        self._ready: set[str] = set()
        self._offers: dict[str, str] = {}
        self._protocol = ""
        self._registered_workers = 0
        self._restarts: dict[str, int] = {}
        self._failure: RootCause | None = None
        self._phase = STARTING
        self._last_heard: float | None = None
        self._outcome: Outcome | None = None
        self._suspended = suspended  # names of this host's suspended processes
        self._stop_signal = ""
        self._dump_requested = False
        self._installing = False
        self.kernel_kills = KernelKills()

    # The host's own side

    def take_event(self, event: Event) -> None:
        """A log event of one of this host's servers."""
        with self._lock:
            if event.name == "server_ready":
                self._ready.add(event.fields.get("name", ""))
            elif event.name == WORKER_OFFERS:
                self._offers[event.fields.get("name", "")] = event.fields.get("data_transfer_protocol", "")
            elif event.name == "workers_registered":
                count = event.fields.get("n", "")
                self._registered_workers = int(count) if count.isdecimal() else 0
        self._wake.set()

    def fail(self, cause: RootCause) -> None:
        """Record a failure; the first one counts."""
        cause = explained(cause, self.memory())
        with self._lock:
            self._failure = self._failure or cause

    def memory(self) -> Body:
        """Whether the kernel has just killed for want of memory, and what processes held; empty when it has not."""
        killed = self.kernel_kills.just_now()
        return {"killed": killed, "resident_bytes": self.usage.resident_bytes()} if killed else {}

    def set_restarts(self, restarts: dict[str, int]) -> None:
        with self._lock:
            self._restarts = restarts

    def agree(self, protocol: str) -> None:
        """How batches travel in this job; said once."""
        with self._lock:
            self._protocol = self._protocol or protocol
        self._wake.set()

    @property
    def offers(self) -> dict[str, str]:
        """By which protocol each worker of this host that has said so can send batches."""
        with self._lock:
            return dict(self._offers)

    @property
    def protocol(self) -> str:
        """How batches travel in this job; empty until the leader has decided."""
        with self._lock:
            return self._protocol

    def set_installing(self, installing: bool) -> None:
        """Whether something that the trainer needs is being installed."""
        with self._lock:
            self._installing = installing

    def request_stop(self, signal_name: str) -> None:
        """The platform or the user wants the job to end.

        Called from signal handlers, which may interrupt a holder of any lock: it only sets an attribute,
        and the main loop sees it at its next tick.
        """
        self._stop_signal = self._stop_signal or signal_name

    @property
    def stop_signal(self) -> str:
        """The signal that asked for the end; empty when none did."""
        return self._stop_signal

    def take_dump_request(self) -> bool:
        """Whether the leader has asked for the stacks of this host's ranks since the last call."""
        with self._lock:
            requested, self._dump_requested = self._dump_requested, False
            return requested

    @property
    def registered_workers(self) -> int:
        """How many workers this host's dispatcher has; 0 without one."""
        with self._lock:
            return self._registered_workers

    @property
    def failure(self) -> RootCause | None:
        with self._lock:
            return self._failure

    @property
    def outcome(self) -> Outcome | None:
        """What the leader decided, once it has said so."""
        with self._lock:
            return self._outcome

    def silence_s(self, now: float) -> float | None:
        """Seconds since the leader was last heard; None when it never was."""
        with self._lock:
            return None if self._last_heard is None else now - self._last_heard

    def status(self) -> Body:
        """This host as the leader sees it."""
        suspended, memory = self._suspended(), self.memory()
        with self._lock:
            return {
                "host": self.host,
                "ready": sorted(self._ready),
                "offers": dict(self._offers),
                "registered_workers": self._registered_workers,
                "restarts": dict(self._restarts),
                "suspended": suspended,
                "installing": self._installing,
                "stop_signal": self._stop_signal,
                "failure": self._failure and self._failure.as_json(),
                "cpu": self.usage.report(),
                "memory": memory,
            }

    # The control channel's side

    def renew(self, body: Body) -> Body:
        """The leader is alive and says the job's phase, and the outcome when there is one."""
        self.set_phase(str(body.get("phase", STARTING)))
        if body.get("protocol"):
            self.agree(str(body["protocol"]))
        ending = isinstance(body.get("outcome"), dict)
        if ending:
            self.usage.freeze()
        status = self.status()  # before the main loop is woken, which stops the server
        with self._lock:
            self._last_heard = time.monotonic()
            outcome = body.get("outcome")
            if isinstance(outcome, dict) and self._outcome is None:
                self._outcome = Outcome.from_json(outcome)
            self._dump_requested = self._dump_requested or bool(body.get("dump"))
        if self.outcome or body.get("dump"):
            self._wake.set()
        return status

    def set_phase(self, phase: str) -> None:
        """Once steps are made, CPU time counts from there: what came before was start-up."""
        with self._lock:
            entered = phase == STEPPING and self._phase != STEPPING
            if entered:
                self._phase = STEPPING
        if entered:
            self.usage.mark()
