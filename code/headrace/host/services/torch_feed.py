"""PyTorch's data service: `num_of_data_workers` feed servers on every host, each of which can make any batch."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from headrace.cluster.topology import Topology
from headrace.events import FEED_READY, Event
from headrace.host.services.contract import (
    WORKER_NICENESS_BESIDE_TRAINER,
    DataService,
    Report,
    Server,
    server_name,
    servers_by_address,
    servers_of,
)
from headrace.job.settings import FEEDS_VARIABLE, STALL_TIMEOUT_VARIABLE, Settings

MODULE = "headrace.torch.feed.server"


class TorchFeed(DataService):
    """The feed servers of a job."""

    mode = "service"
    waited_for = "each other, or for data from the feed servers"

    def __init__(
        self, topology: Topology, settings: Settings, source_dir: Path, work_dir: Path, arguments: Sequence[str]
    ) -> None:
        super().__init__(topology, settings, source_dir, work_dir, arguments)
        self._ready: set[str] = set()

    def servers(self) -> list[Server]:
        host, settings = self._topology.current, self._settings
        endpoint = settings.endpoint(host.name)
        environ = {
            "CUDA_VISIBLE_DEVICES": "-1",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(self._source_dir), os.environ.get("PYTHONPATH")])),
            # A script, or Lightning, may ask MPI for its rank. It has none here, and MPI then needs no daemon.
            "OMPI_MCA_ess_singleton_isolated": "1",
            STALL_TIMEOUT_VARIABLE: str(math.ceil(settings.stall_timeout_s)),
        }
        servers = []
        for number in range(servers_of(host, self._topology, settings)):
            port = endpoint.first_worker_port + number
            argv = [
                sys.executable, "-u", "-m", MODULE, f"--port={port}", f"--address={endpoint.address}:{port}",
                f"--share={settings.num_of_data_workers}",
                # The ranks' own command: the servers run the script to make its dataset.
                str(self._source_dir / settings.training_script), *self._arguments,
            ]  # fmt: skip
            name = server_name(number, settings)
            nice = WORKER_NICENESS_BESIDE_TRAINER if host.role == "dnn" else 0
            servers.append(Server("worker", name, [port], argv, environ, nice))
        return servers

    def take_event(self, event: Event) -> None:
        if event.name == FEED_READY:
            self._ready.add(event.fields.get("name", ""))

    def report(self) -> Report:
        return {"ready_feeds": sorted(self._ready)}

    def trainer_environ(self) -> dict[str, str]:
        return {**super().trainer_environ(), FEEDS_VARIABLE: ",".join(self.worker_names())}

    def worker_names(self) -> Mapping[str, str]:
        return servers_by_address(self._topology, self._settings)

    def ready(self, reports: Mapping[str, Report]) -> int:
        return sum(len(self._ready_on(report)) for report in reports.values())

    def missing(self, reports: Mapping[str, Report], without: Collection[str]) -> list[str]:
        missing = []
        for host in self._topology.hosts:
            late = servers_of(host, self._topology, self._settings) - len(self._ready_on(reports.get(host.name, {})))
            if late > 0 and host.name not in without:
                missing.append(f"{late} feed server{'s' * (late > 1)} on {host.name}")
        return missing

    @staticmethod
    def _ready_on(report: Report) -> Sequence[str]:
        found = report.get("ready_feeds")
        return found if isinstance(found, list) else ()
