"""Find what the job still waits for, before the trainer's start and after it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from headrace.cluster.topology import Topology
from headrace.errors import DeadlineError
from headrace.frameworks import FRAMEWORKS
from headrace.host.leader.peers import Hosts
from headrace.host.services.contract import DataService
from headrace.job.settings import Settings


class Readiness:
    """Says what is missing, and decides whether the job goes on without it after `startup_timeout_s`."""

    def __init__(self, topology: Topology, settings: Settings, service: DataService, hosts: Hosts) -> None:
        self._topology, self._settings, self._service, self._hosts = topology, settings, service, hosts

    def missing_for_trainer(self, installing_here: bool) -> list[str]:
        """Return what the trainer's start waits for: dnn hosts, and Horovod's installation."""
        installing = [self._topology.current.name] if installing_here else []
        installing += [host for host, status in self._hosts.present().items() if status.get("installing")]
        dnn_hosts = {host.name for host in self._topology.dnn_hosts}
        installer = FRAMEWORKS[self._settings.framework].installer
        installs = [f"{installer.what} to be installed on {', '.join(installing)}"] if installer and installing else []
        return self._missing_hosts(dnn_hosts) + installs

    def missing_for_data(self, reports: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Return what ranks wait for: hosts, and their servers."""
        everyone = {host.name for host in self._topology.hosts}
        return self._missing_hosts(everyone) + self._service.missing(reports, self._hosts.lost)

    def give_up(self, missing: list[str]) -> list[str]:
        """Return the silent hosts that the job can go on without, once the deadline has passed.

        Raises:
            DeadlineError: the job cannot go on; the message names what is missing.
        """
        silent = self._hosts.never_heard()
        data_hosts = {host.name for host in self._topology.data_hosts}
        expendable = {host for host in data_hosts if not self._service.needs(host)}
        left = len(data_hosts) - len(silent) - len(self._hosts.lost)
        if silent and set(silent) <= expendable and left >= self._settings.min_data_hosts:
            return silent
        hints = "".join(f"; {host}: {error}" for host, error in self._hosts.errors.items() if error)
        raise DeadlineError(
            f"The job was not ready within startup_timeout_s={self._settings.startup_timeout_s:g}: still waiting for "
            + " and ".join(missing) + hints
        )  # fmt: skip

    def _missing_hosts(self, among: Collection[str]) -> list[str]:
        silent = [host for host in self._hosts.never_heard() if host in among]
        starting = [
            host
            for host, status in self._hosts.present().items()
            if host in among and not status.get("servers_started")
        ]
        return ([f"first contact with {', '.join(silent)}"] if silent else []) + (
            [f"the servers of {', '.join(starting)} to be started"] if starting else []
        )
