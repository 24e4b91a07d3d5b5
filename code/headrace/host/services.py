"""The data services: which servers a host runs, how readiness is told, what the trainer is told.

The launcher knows a data service by this contract alone. Servers are started by path and tell
their readiness with a log event (`server_ready name=…`, `workers_registered n=…`) on their output.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headrace.settings import DISPATCHER_PORT, TRANSFER_PORT_OFFSET, Settings
from headrace.topology import Topology

WORKER_NICENESS_BESIDE_TRAINER = 10
"""On a dnn host, workers use what the trainer leaves over and never compete with it."""
PROTOCOL_FILE = "data_transfer_protocol"
"""Holds how batches travel in this job, once the leader has decided; in the host's work folder."""


@dataclass(frozen=True)
class Server:
    """A server of this host: its role and name, its ports, how it is started."""

    role: str
    name: str
    ports: Sequence[int]
    argv: Sequence[str]
    nice: int = 0


class DataService(Protocol):
    """What the launcher asks of a data service."""

    def servers(self) -> list[Server]:
        """The servers that run on this host."""

    def expected_workers(self, without: Collection[str] = ()) -> int:
        """How many workers the whole job has once all hosts are up, but for some."""

    def address(self) -> str:
        """What the trainer connects to; empty when it reads its data itself."""


class NoDataService:
    """Local mode: the trainer's own process makes the batches."""

    def servers(self) -> list[Server]:
        return []

    def expected_workers(self, without: Collection[str] = ()) -> int:
        return 0

    def address(self) -> str:
        return ""


@dataclass(frozen=True)
class TfDataService:
    """tf.data service: a dispatcher on its host, `num_of_data_workers` workers on every host."""

    topology: Topology
    settings: Settings
    source_dir: Path
    work_dir: Path

    def servers(self) -> list[Server]:
        host = self.topology.current
        script = [sys.executable, "-u", str(self.source_dir / "train_data.py")]
        servers = []
        if host == self.topology.dispatcher_host:
            argv = [*script, "dispatcher", f"--port={DISPATCHER_PORT}", f"--work_dir={self.work_dir / 'dispatcher'}"]
            servers.append(Server("dispatcher", "dispatcher", [DISPATCHER_PORT], argv))
        endpoint = self.settings.endpoint(host.name)
        for number in range(self.settings.num_of_data_workers):
            port = endpoint.first_worker_port + number
            argv = [
                *script, "worker", f"--port={port}", f"--address={endpoint.address}:{port}",
                f"--transfer_address={endpoint.address}:{port + TRANSFER_PORT_OFFSET}",
                f"--dispatcher={self.address()}", f"--timeout_s={self.settings.startup_timeout_s:g}",
                f"--protocol_file={self.work_dir / PROTOCOL_FILE}",
            ]  # fmt: skip
            nice = WORKER_NICENESS_BESIDE_TRAINER if host.role == "dnn" else 0
            name = "worker" if self.settings.num_of_data_workers == 1 else f"worker-{number}"
            servers.append(Server("worker", name, [port, port + TRANSFER_PORT_OFFSET], argv, nice))
        return servers

    def expected_workers(self, without: Collection[str] = ()) -> int:
        present = [host for host in self.topology.hosts if host.name not in without]
        return len(present) * self.settings.num_of_data_workers

    def address(self) -> str:
        return f"{self.settings.endpoint(self.topology.dispatcher_host.name).address}:{DISPATCHER_PORT}"


def data_service(topology: Topology, settings: Settings, source_dir: Path, work_dir: Path) -> DataService:
    """The data service that the settings ask for."""
    if effective_mode(topology, settings) == "local":
        return NoDataService()
    return TfDataService(topology, settings, source_dir, work_dir)


def effective_mode(topology: Topology, settings: Settings) -> str:
    """`service` or `local`: what was asked for, else service when there is a data group."""
    return settings.tf_data_mode or ("service" if topology.is_hetero else "local")
