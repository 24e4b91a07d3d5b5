"""PyTorch's data service: `num_of_data_workers` feed servers on every host, each of which can make any batch."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping, Sequence

from headrace.cluster.topology import Host
from headrace.events import FEED_READY, Event
from headrace.host.host_plan import HostPlan
from headrace.host.mpi.mpirun import python_path
from headrace.host.services.contract import WORKER_NICENESS_BESIDE_TRAINER, DataService, Report, Server
from headrace.job.settings import FEEDS_VARIABLE, STALL_TIMEOUT_VARIABLE

MODULE = "headrace.torch.feed.server"


class TorchFeed(DataService):
    """The feed servers of a job."""

    mode = "service"
    waited_for = "data from the feed servers, or for each other"

    def __init__(self, plan: HostPlan) -> None:
        super().__init__(plan)
        self._ready: set[str] = set()

    def servers(self, host: Host) -> list[Server]:
        plan, settings = self._plan, self._settings
        address = settings.endpoint(host.name).address
        environ = {
            "CUDA_VISIBLE_DEVICES": "-1",
            **python_path(plan.source_dir, plan.environ),
            # The script or Lightning may initialize MPI. This variable makes MPI work without a daemon in feed servers.
            "OMPI_MCA_ess_singleton_isolated": "1",
            STALL_TIMEOUT_VARIABLE: str(math.ceil(settings.stall_timeout_s)),
        }
        servers = []
        for name, port in self._workers(host).items():
            argv = [
                sys.executable,
                "-u",
                "-m",
                MODULE,
                f"--port={port}",
                f"--address={address}:{port}",
                f"--share={settings.num_of_data_workers}",
                # The script and its arguments are those of the ranks: servers run it to make its dataset.
                str(plan.source_dir / settings.training_script),
                *plan.script_arguments,
            ]
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
        return self._workers_by_address()

    def ready(self, reports: Mapping[str, Report]) -> int:
        return sum(len(self._ready_on(report)) for report in reports.values())

    def missing(self, reports: Mapping[str, Report], without: Collection[str]) -> list[str]:
        missing = []
        for host in self._topology.hosts:
            late = len(self._workers(host)) - len(self._ready_on(reports.get(host.name, {})))
            if late > 0 and host.name not in without:
                missing.append(f"{late} feed server{'s' * (late > 1)} on {host.name}")
        return missing

    @staticmethod
    def _ready_on(report: Report) -> Sequence[str]:
        found = report.get("ready_feeds")
        return found if isinstance(found, list) else ()
