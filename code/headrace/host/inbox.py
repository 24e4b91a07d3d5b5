"""The one queue of a host's main loop: threads and signal handlers put what has happened, the loop alone acts on it."""

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
    """A log event of a rank; on the leader."""

    event: Event


@dataclass(frozen=True)
class LeaderSaid:
    """The leader has renewed its lease with this host. `body` is what it said."""

    body: Mapping[str, Any]


@dataclass(frozen=True)
class MpiDaemonAsked:
    """The leader's mpirun wants this host's MPI daemon, with these arguments."""

    arguments: tuple[str, ...]


@dataclass(frozen=True)
class StopAsked:
    """The platform or the user wants the job to end."""

    signal_name: str


@dataclass(frozen=True)
class HostAnswered:
    """Another host has answered a renewal with its status; on the leader."""

    host: str
    status: Mapping[str, Any]
    news: bool = True
    """Whether more than its figures has changed."""


@dataclass(frozen=True)
class HostSilent:
    """A call to another host has failed; on the leader."""

    host: str
    error: str


@dataclass(frozen=True)
class HostInformed:
    """Another host has heard the outcome; on the leader."""

    host: str


Happening = ServerSaid | RankSaid | LeaderSaid | MpiDaemonAsked | StopAsked | HostAnswered | HostSilent | HostInformed
Stamped = tuple[float, Happening]
"""With the moment it was put: monotonic seconds."""


class Inbox:
    """What has happened since the loop last looked. `put` may be called from anywhere, signal handlers too."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Stamped] = queue.SimpleQueue()  # its put may be interrupted by another put

    def put(self, happening: Happening) -> None:
        self._queue.put((time.monotonic(), happening))

    def take(self, timeout_s: float) -> list[Stamped]:
        """What has come, oldest first; waits for the first so long. Empty when nothing came."""
        found: list[Stamped] = []
        try:
            found.append(self._queue.get(timeout=timeout_s))
            while True:
                found.append(self._queue.get_nowait())
        except queue.Empty:
            return found
