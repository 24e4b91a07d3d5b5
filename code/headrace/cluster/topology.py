"""The topology of a job: hosts, instance groups, roles, the dispatcher's host and the leader.

Each host computes the topology by itself with `headrace.cluster.sagemaker`, and all hosts get the same result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.terminal.tables import aligned

DATA_GROUP = "data_group"
DNN_GROUP = "dnn_group"
HOMOGENEOUS_GROUP = "homogeneousCluster"
"""SageMaker's name for the only group of a job that was submitted without instance groups."""


@dataclass(frozen=True)
class Host:
    """One host, with its name, instance group, instance type and role (`data` or `dnn`)."""

    name: str
    group: str
    instance_type: str
    role: str


@dataclass(frozen=True)
class Topology:
    """All hosts of the job, in the order of `read_topology`, and the host on which this process runs."""

    hosts: tuple[Host, ...]
    current: Host
    network_interface: str
    source: str
    """The file or the variables from which the topology was read, for messages."""

    @property
    def data_hosts(self) -> tuple[Host, ...]:
        return tuple(host for host in self.hosts if host.role == "data")

    @property
    def dnn_hosts(self) -> tuple[Host, ...]:
        return tuple(host for host in self.hosts if host.role == "dnn")

    @property
    def leader(self) -> Host:
        """The first dnn host, with rank 0. It decides the outcome. It starts mpirun if SageMaker's toolkit does not."""
        return self.dnn_hosts[0]

    @property
    def dispatcher_host(self) -> Host:
        """The first data host, or the leader if there is no data group."""
        return (self.data_hosts or self.dnn_hosts)[0]

    @property
    def is_hetero(self) -> bool:
        return bool(self.data_hosts)

    @property
    def is_leader(self) -> bool:
        return self.current == self.leader

    def peers(self) -> tuple[Host, ...]:
        """Return every host except the current one."""
        return tuple(host for host in self.hosts if host != self.current)

    def describe(self) -> dict[str, Any]:
        """Return the topology as data for JSON."""
        return {
            "current_host": self.current.name,
            "leader": self.leader.name,
            "dispatcher_host": self.dispatcher_host.name,
            "is_hetero": self.is_hetero,
            "network_interface_name": self.network_interface,
            "source": self.source,
            "groups": {
                group: [host.name for host in self.hosts if host.group == group]
                for group in dict.fromkeys(host.group for host in self.hosts)
            },
            "hosts": {
                host.name: {"group": host.group, "instance_type": host.instance_type, "role": host.role}
                for host in self.hosts
            },
        }

    def table(self, servers: Callable[[Host], Sequence[str]] = lambda host: ()) -> str:
        """Return the topology as a text table.

        Args:
            servers: function that returns the names of a host's servers.
        """
        rows = [("host", "group", "instance type", "role", "runs")]
        for host in self.hosts:
            runs = [*servers(host), *(["ranks"] if host.role == "dnn" else [])]
            runs += ["mpirun (leader)"] if host == self.leader else []
            name = host.name + (" *" if host == self.current else "")
            rows.append((name, host.group, host.instance_type, host.role, ", ".join(runs)))
        return "\n".join([*aligned(rows), f"* this host; read from {self.source}"])


def natural_key(name: str) -> tuple[tuple[str, int], ...]:
    """Return a sort key that puts `algo-2` before `algo-10`."""
    return tuple((text, int(digits or -1)) for text, digits in re.findall(r"(\D*)(\d*)", name))
