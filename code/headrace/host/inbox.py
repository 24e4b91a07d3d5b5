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
    """A log event of a rank. Occurs on the leader."""

    event: Event


@dataclass(frozen=True)
class LeaderSaid:
    """A renewal of the lease by the leader, with the message that it sent."""

    body: Mapping[str, Any]


@dataclass(frozen=True)
class MpiDaemonAsked:
    """A request by the leader's mpirun for this host's MPI daemon, with orted's arguments."""

    arguments: tuple[str, ...]


@dataclass(frozen=True)
class StopAsked:
    """A signal by which the platform or the user asks for the job's end."""

    signal_name: str


@dataclass(frozen=True)
class HostAnswered:
    """Another host's status, in its reply to a renewal. Occurs on the leader."""

    host: str
    status: Mapping[str, Any]
    news: bool = True
    """Whether the status has changed in more than its figures."""


@dataclass(frozen=True)
class HostSilent:
    """A failed call to another host. Occurs on the leader."""

    host: str
    error: str


@dataclass(frozen=True)
class HostInformed:
    """Another host's confirmation that it has received the outcome. Occurs on the leader."""

    host: str


Happening = ServerSaid | RankSaid | LeaderSaid | MpiDaemonAsked | StopAsked | HostAnswered | HostSilent | HostInformed
Stamped = tuple[float, Happening]
"""An event after the moment at which it was put, in monotonic seconds."""


class Inbox:
    """The events since the loop last looked. `put` may be called from any thread and from signal handlers."""

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
