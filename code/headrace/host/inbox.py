"""The event queue of a host's main loop: threads and signal handlers put events, the loop alone acts on them."""

from __future__ import annotations

import queue
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.events import Event


@dataclass(frozen=True)
class ServerSaid:
    """A log event of one of this host's servers."""

    event: Event


@dataclass(frozen=True)
class RankSaid:
    """An event that a rank has logged. Only the leader gets it."""

    event: Event


@dataclass(frozen=True)
class LeaderSaid:
    """A call by which the leader renews this host's lease. `body` is the call's content, such as the job's phase."""

    body: Mapping[str, Any]


@dataclass(frozen=True)
class MpiDaemonAsked:
    """A request of the leader's mpirun to start this host's MPI daemon (orted), with its arguments."""

    arguments: tuple[str, ...]


@dataclass(frozen=True)
class StopAsked:
    """A signal by which the platform or the user asks for the job's end."""

    signal_name: str


@dataclass(frozen=True)
class HostAnswered:
    """Another host's status, from its reply to a lease renewal. Only the leader gets it."""

    host: str
    status: Mapping[str, Any]
    news: bool = True
    """False if only measurements, such as CPU time, differ from the host's previous status."""


@dataclass(frozen=True)
class HostSilent:
    """A failed call to another host. Occurs on the leader."""

    host: str
    error: str


@dataclass(frozen=True)
class HostInformed:
    """Another host's confirmation that it has received the job's outcome. Occurs on the leader."""

    host: str


Happening = ServerSaid | RankSaid | LeaderSaid | MpiDaemonAsked | StopAsked | HostAnswered | HostSilent | HostInformed
Stamped = tuple[float, Happening]
"""A pair: the moment at which an event was put, in monotonic seconds, and the event."""


class Inbox:
    """The events that the main loop has not taken yet. Any thread and any signal handler may call `put`."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Stamped] = queue.SimpleQueue()  # the queue whose put is reentrant

    def put(self, happening: Happening) -> None:
        self._queue.put((time.monotonic(), happening))

    def take(self, timeout_s: float) -> list[Stamped]:
        """Return all events, oldest first; wait up to `timeout_s` for the first. Empty if none came."""
        found: list[Stamped] = []
        try:
            found.append(self._queue.get(timeout=timeout_s))
            while True:
                found.append(self._queue.get_nowait())
        except queue.Empty:
            return found
