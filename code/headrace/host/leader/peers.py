"""What the leader knows of the other hosts: what they last said, since when they are silent, which are given up."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

from headrace.cluster.topology import Host
from headrace.host.control.in_parts import Joined
from headrace.host.inbox import HostAnswered, HostInformed, HostSilent, Stamped


class Hosts:
    """Fed with what has happened, by the main loop; knows no clock and no socket."""

    def __init__(self, hosts: tuple[Host, ...], lease_s: float) -> None:
        self.names = tuple(host.name for host in hosts)
        self.statuses: dict[str, Mapping[str, Any]] = {}
        """The last status of each host that has answered at least once."""
        self.heard_at: dict[str, float] = {}
        self.errors: dict[str, str] = dict.fromkeys(self.names, "not called yet")
        """Why the last call failed; empty when it did not."""
        self.lost: list[str] = []
        """Given up: the job goes on without them, or has failed for it."""
        self.informed: set[str] = set()
        """Those that have heard the outcome."""
        self._received = collections.defaultdict[str, Joined](Joined)
        self._lease_s = lease_s

    def take(self, stamped: Stamped) -> None:
        """Note what has happened, if it is of another host."""
        at, happening = stamped
        if isinstance(happening, HostAnswered):
            received = self._received[happening.host].take(happening.status.get("received"))
            self.statuses[happening.host] = {**happening.status, "received": received}
            self.heard_at[happening.host] = at
            self.errors[happening.host] = ""
        elif isinstance(happening, HostSilent):
            self.errors[happening.host] = happening.error
        elif isinstance(happening, HostInformed):
            self.informed.add(happening.host)

    def present(self) -> dict[str, Mapping[str, Any]]:
        """The last status of each host that has answered at least once and is not lost."""
        return {host: status for host, status in self.statuses.items() if host not in self.lost}

    def never_heard(self) -> list[str]:
        """Those that were never reached and are not given up."""
        return [host for host in self.names if host not in self.statuses and host not in self.lost]

    def overdue(self, now: float) -> list[str]:
        """Those that were reached once, and then not for `lease_s`."""
        return [host for host, at in self.heard_at.items() if host not in self.lost and now - at > self._lease_s]
