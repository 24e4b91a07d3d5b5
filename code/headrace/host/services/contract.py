"""The interface of a data service. Other code of `host` uses only this, and does not know which service runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.cluster.topology import Host
from headrace.events import Event
from headrace.host.host_plan import HostPlan

Report = Mapping[str, Any]
"""A report on a host's servers, as JSON values. A data service reads only its own reports."""
KINDS = ("dispatcher", "worker")
"""Kinds of servers. Every summary counts the restarts of each kind: 0 if the job has no servers of the kind."""
WORKER_NICENESS_BESIDE_TRAINER = 19
"""Niceness of workers on a dnn host, so that they use only CPU time that the trainer leaves over. At a niceness of 10,
a worker's many threads took a third of a processor that the trainer could have used."""


@dataclass(frozen=True)
class Server:
    """A server of this host: its kind, its ports, its command. The launcher restarts it when it ends."""

    kind: str
    """The kind of server. CPU time and restarts are summed by kind."""
    name: str
    """The kind, with a number if a host has several servers of the kind."""
    ports: Sequence[int]
    argv: Sequence[str]
    environ: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that the server needs in addition to the host's."""
    nice: int = 0


@dataclass(frozen=True)
class Decision:
    """A decision that the leader makes once for all hosts. The leader logs `note`, and an event with the `fields`."""

    event: str
    fields: Mapping[str, str]
    note: str = ""


class DataService:
    """A launcher's part of a job's data service. Each host has one launcher, or one per rank if SageMaker runs mpirun.

    This base class is local mode: each rank makes its batches, so there is no server to start or to wait for.
    """

    mode = "local"
    """The mode in the summary: `service` or `local`."""
    waited_for = "data, or the script itself hangs"
    """What ranks wait for, in words that complete the watchdog's message `all ranks waited for …`."""

    def __init__(self, plan: HostPlan) -> None:
        self._plan, self._topology, self._settings = plan, plan.topology, plan.settings

    # On every host

    def servers(self, host: Host) -> list[Server]:
        """Return the servers to run on a host of the job."""
        return []

    def take_event(self, event: Event) -> None:
        """Take note of an event that a server of this host has logged."""

    def report(self) -> Report:
        """Return a copy of this host's report. The host sends it to the leader in replies to lease renewals."""
        return {}

    def hear(self, decision: Mapping[str, Any]) -> None:
        """Act on the leader's `Decision.fields`. Each lease renewal sends them again, so expect repeated calls."""

    def trainer_environ(self) -> dict[str, str]:
        """Return the environment variables by which this host's ranks find their data; see `TrainerContext`."""
        return {"HEADRACE_TF_DATA_MODE": self.mode}

    # On the leader

    def needs(self, host: str) -> bool:
        """Return whether the job cannot continue without this data host."""
        return False

    def decide(self, reports: Mapping[str, Report], without: Collection[str], now: float) -> Decision | None:
        """Return the decision that all hosts need before they are ready; None if it is not needed, or not possible yet.

        Args:
            reports: reports received so far, by host.
            without: lost hosts. The job continues without them.
            now: monotonic seconds.
        """
        return None

    def worker_names(self) -> Mapping[str, str]:
        """Return a dict from ADDRESS:PORT, where ranks receive batches, to HOST/NAME of the server that makes them."""
        return {}

    def ready(self, reports: Mapping[str, Report]) -> int:
        """Return the number of servers that are ready to serve ranks."""
        return 0

    def missing(self, reports: Mapping[str, Report], without: Collection[str]) -> list[str]:
        """Return a text for each thing that ranks still wait for; empty when all is ready."""
        return []

    # For services that make batches in `num_of_data_workers` servers per host.

    def _workers(self, host: Host) -> dict[str, int]:
        """Return a dict from name to port, for those servers of a host that make batches."""
        settings = self._settings
        if settings.local_workers == "off" and self._topology.is_hetero and host.role == "dnn":
            return {}
        first, count = settings.endpoint(host.name).first_worker_port, settings.num_of_data_workers
        return {"worker" if count == 1 else f"worker-{number}": first + number for number in range(count)}

    def _workers_by_address(self, port_offset: int = 0) -> dict[str, str]:
        """Return a dict from ADDRESS:PORT to HOST/NAME, for all servers that make batches."""
        return {
            f"{self._settings.endpoint(host.name).address}:{port + port_offset}": f"{host.name}/{name}"
            for host in self._topology.hosts
            for name, port in self._workers(host).items()
        }
