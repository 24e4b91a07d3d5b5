"""What the launcher asks of a data service. Nothing else in `host` knows which one runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.cluster.topology import Host, Topology
from headrace.events import Event
from headrace.job.settings import Settings

Report = Mapping[str, Any]
"""What a host's servers have told, as JSON-ready data: only the service that made it reads it."""
KINDS = ("dispatcher", "worker")
"""The kinds of servers whose restarts every summary has, zero where there are none."""
WORKER_NICENESS_BESIDE_TRAINER = 19
"""On a dnn host, workers use what the trainer leaves over and do not compete with it. At 10, a worker's many threads
took a third of a processor that the trainer could have used."""


@dataclass(frozen=True)
class Server:
    """A server of this host: what it is, its ports, how it is started. It is started again when it ends."""

    kind: str
    """What its CPU time and its restarts are summed under."""
    name: str
    """The kind, with a number where a host has several."""
    ports: Sequence[int]
    argv: Sequence[str]
    environ: Mapping[str, str] = field(default_factory=dict)
    """What it needs beside the host's own environment."""
    nice: int = 0


@dataclass(frozen=True)
class Decision:
    """What the leader has decided for all hosts, once: a log event, and what people should know of it."""

    event: str
    fields: Mapping[str, str]
    note: str = ""


def servers_of(host: Host, topology: Topology, settings: Settings) -> int:
    """How many servers that make batches run on a host."""
    off = settings.local_workers == "off" and topology.is_hetero and host.role == "dnn"
    return 0 if off else settings.num_of_data_workers


def server_name(number: int, settings: Settings) -> str:
    """Of the servers that make batches on a host."""
    return "worker" if settings.num_of_data_workers == 1 else f"worker-{number}"


def servers_by_address(topology: Topology, settings: Settings, port_offset: int = 0) -> dict[str, str]:
    """HOST/NAME of all servers that make batches, by address and port."""
    return {
        f"{endpoint.address}:{endpoint.first_worker_port + number + port_offset}":
            f"{host.name}/{server_name(number, settings)}"
        for host in topology.hosts
        for endpoint in [settings.endpoint(host.name)]
        for number in range(servers_of(host, topology, settings))
    }  # fmt: skip


class DataService(Protocol):
    """The data service of a job, seen from one host. If the toolkit starts MPI, each rank's process makes one."""

    @property
    def mode(self) -> str:
        """`service` or `local`, as the summary has it."""

    @property
    def kinds(self) -> Sequence[str]:
        """Of its servers."""

    @property
    def waited_for(self) -> str:
        """What the watchdog prints when ranks wait for data, for example `data from the tf.data service`."""

    # On every host

    def servers(self) -> list[Server]:
        """The servers that run on this host."""

    def take_event(self, event: Event) -> None:
        """A log event of one of this host's servers."""

    def report(self) -> Report:
        """What this host's servers have told, as a copy; it reaches the leader with the next renewal."""

    def hear(self, decision: Mapping[str, Any]) -> None:
        """The fields of the leader's decision; told again and again."""

    def trainer_environ(self) -> dict[str, str]:
        """What the ranks of this host need to find their data; for `headrace.tensorflow.data` see `TrainerContext`."""

    # On the leader

    def needs(self, host: str) -> bool:
        """Whether no job can go on without this data host."""

    def decide(self, reports: Mapping[str, Report], without: Collection[str], now: float) -> Decision | None:
        """What all hosts must hear before they are ready; None while that is open, or when there is nothing.

        Args:
            reports: by host, of those that were heard.
            without: hosts that the job goes on without.
            now: monotonic seconds.
        """

    def worker_names(self) -> Mapping[str, str]:
        """Who makes batches: HOST/NAME of the server, by the HOST:PORT that ranks receive batches from."""

    def ready(self, reports: Mapping[str, Report]) -> int:
        """How many servers can serve ranks."""

    def missing(self, reports: Mapping[str, Report], without: Collection[str]) -> list[str]:
        """What ranks still wait for, for people to read; empty when all is ready."""
