"""What the leader knows of the other hosts: their latest statuses, the times of their last answers, the lost hosts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.cluster.topology import Host
from headrace.host.inbox import HostAnswered, HostInformed, HostSilent, Stamped


class Hosts:
    """What the leader knows of the other hosts. It learns this from the main loop's events, with no clock or socket."""

    def __init__(self, hosts: tuple[Host, ...], lease_s: float) -> None:
        self.names = tuple(host.name for host in hosts)
        self.statuses: dict[str, Mapping[str, Any]] = {}
        """The last status of each host that has answered at least once."""
        self.heard_at: dict[str, float] = {}
        self.errors: dict[str, str] = dict.fromkeys(self.names, "not called yet")
        """The error of the last call to each host; empty if it succeeded."""
        self.lost: list[str] = []
        """Hosts that no longer answer, or never did. The job goes on without them, or has failed."""
        self.informed: set[str] = set()
        """Hosts that have received the job's outcome."""
        self._lease_s = lease_s

    def take(self, stamped: Stamped) -> None:
        """Record what an event says about another host; ignore other events."""
        at, happening = stamped
        if isinstance(happening, HostAnswered):
            self.statuses[happening.host] = happening.status
            self.heard_at[happening.host] = at
            self.errors[happening.host] = ""
        elif isinstance(happening, HostSilent):
            self.errors[happening.host] = happening.error
        elif isinstance(happening, HostInformed):
            self.informed.add(happening.host)

    def present(self) -> dict[str, Mapping[str, Any]]:
        """Return the last status of each host that has answered at least once and is not lost."""
        return {host: status for host, status in self.statuses.items() if host not in self.lost}

    def never_heard(self) -> list[str]:
        """Return the hosts that have never answered and are not lost."""
        return [host for host in self.names if host not in self.statuses and host not in self.lost]

    def overdue(self, now: float) -> list[str]:
        """Return the hosts that have answered before, but not in the last `lease_s` seconds."""
        return [host for host, at in self.heard_at.items() if host not in self.lost and now - at > self._lease_s]
