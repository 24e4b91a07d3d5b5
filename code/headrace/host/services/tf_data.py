"""tf.data service: a dispatcher on one host, and `num_of_data_workers` workers on every host.

Before a worker registers, it reports whether it can send batches by headrace's protocol or only by gRPC. A rank uses
the same protocol with all workers. So the leader chooses a protocol that all workers can use (ADR 12).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping
from typing import Any

from headrace.cluster.addresses import TRANSFER_PORT_OFFSET
from headrace.cluster.topology import Host
from headrace.events import WORKER_OFFERS, Event
from headrace.host.host_plan import HostPlan
from headrace.host.services.contract import WORKER_NICENESS_BESIDE_TRAINER, DataService, Decision, Report, Server
from headrace.job.settings import STALL_TIMEOUT_VARIABLE
from headrace.rank.context import GRPC

LATE_WORKERS_S = 60.0
"""Seconds to wait for other workers once enough are ready: their hosts may still be building the transfer library."""


class TfDataService(DataService):
    """The tf.data service of a job."""

    mode = "service"
    waited_for = "data from the tf.data service"

    def __init__(self, plan: HostPlan) -> None:
        super().__init__(plan)
        self._protocol_file = plan.paths.work_dir / "data_transfer_protocol"  # holds the protocol, once it is decided
        self._offers: dict[str, str] = {}
        self._registered = 0
        self._enough_since: float | None = None
        self._decided = False

    def servers(self, host: Host) -> list[Server]:
        settings, work_dir = self._settings, self._plan.paths.work_dir
        script = [sys.executable, "-u", str(self._plan.source_dir / "train_data.py")]
        environ = {"CUDA_VISIBLE_DEVICES": "-1", STALL_TIMEOUT_VARIABLE: str(math.ceil(settings.stall_timeout_s))}
        servers, endpoint = [], settings.endpoint(host.name)
        if host == self._topology.dispatcher_host:
            port = endpoint.dispatcher_port
            argv = [*script, "dispatcher", f"--port={port}", f"--work_dir={work_dir / 'dispatcher'}"]
            servers.append(Server("dispatcher", "dispatcher", [port], argv, environ))
        for name, port in self._workers(host).items():
            argv = [
                *script,
                "worker",
                f"--port={port}",
                f"--address={endpoint.address}:{port}",
                f"--transfer_address={endpoint.address}:{port + TRANSFER_PORT_OFFSET}",
                f"--dispatcher={self._dispatcher()}",
                f"--timeout_s={settings.startup_timeout_s:g}",
                f"--protocol_file={self._protocol_file}",
            ]
            nice = WORKER_NICENESS_BESIDE_TRAINER if host.role == "dnn" else 0
            servers.append(Server("worker", name, [port, port + TRANSFER_PORT_OFFSET], argv, environ, nice))
        return servers

    def take_event(self, event: Event) -> None:
        if event.name == WORKER_OFFERS:
            self._offers[event.fields.get("name", "")] = event.fields.get("data_transfer_protocol", "")
        elif event.name == "workers_registered":
            count = event.fields.get("n", "")
            self._registered = int(count) if count.isdecimal() else 0

    def report(self) -> Report:
        return {"offers": dict(self._offers), "registered_workers": self._registered}

    def hear(self, decision: Mapping[str, Any]) -> None:
        protocol = decision.get("protocol")
        self._decided = self._decided or bool(protocol)
        if protocol and not self._protocol_file.exists():
            partial = self._protocol_file.with_suffix(".partial")
            partial.write_text(str(protocol), encoding="utf-8")
            partial.rename(self._protocol_file)

    def trainer_environ(self) -> dict[str, str]:
        return {
            **super().trainer_environ(),
            "HEADRACE_DISPATCHER": self._dispatcher(),
            "HEADRACE_PROTOCOL_FILE": str(self._protocol_file),
        }

    def needs(self, host: str) -> bool:
        return host == self._topology.dispatcher_host.name

    def decide(self, reports: Mapping[str, Report], without: Collection[str], now: float) -> Decision | None:
        offers = self._all_offers(reports, without)
        if not offers or (len(offers) < self._expected(without) and not self._enough(offers, now)):
            return None
        unable = sorted(worker for worker, protocol in offers.items() if protocol == GRPC)
        protocol = GRPC if unable else next(iter(offers.values()))
        slow = bool(unable) and len(unable) < len(offers)
        note = f"batches travel over gRPC, at half speed: {', '.join(unable)} can use only gRPC" if slow else ""
        return Decision("data_transfer", {"protocol": protocol}, note)

    def worker_names(self) -> Mapping[str, str]:
        return self._workers_by_address(TRANSFER_PORT_OFFSET)

    def ready(self, reports: Mapping[str, Report]) -> int:
        count = reports.get(self._topology.dispatcher_host.name, {}).get("registered_workers")
        return count if isinstance(count, int) else 0

    def missing(self, reports: Mapping[str, Report], without: Collection[str]) -> list[str]:
        expected, registered = self._expected(without), self.ready(reports)
        if not self._decided:
            return [f"tf.data workers: {expected - len(self._all_offers(reports, without))} not started yet"]
        where = self._topology.dispatcher_host.name
        return [f"tf.data workers: {registered} of {expected} registered at {where}"] if registered < expected else []

    def _dispatcher(self) -> str:
        endpoint = self._settings.endpoint(self._topology.dispatcher_host.name)
        return f"{endpoint.address}:{endpoint.dispatcher_port}"

    def _expected(self, without: Collection[str]) -> int:
        return sum(len(self._workers(host)) for host in self._topology.hosts if host.name not in without)

    def _all_offers(self, reports: Mapping[str, Report], without: Collection[str]) -> dict[str, str]:
        """Return a dict from `HOST/NAME` to protocol, for the workers that have reported a protocol so far."""
        found: dict[str, str] = {}
        for host, report in reports.items():
            offers = report.get("offers")
            if host not in without and isinstance(offers, Mapping):
                found |= {f"{host}/{worker}": str(protocol) for worker, protocol in offers.items()}
        return found

    def _enough(self, offers: Mapping[str, str], now: float) -> bool:
        """Return whether the workers that the job needs have been ready for `LATE_WORKERS_S`."""
        topology = self._topology
        heard = {worker.partition("/")[0] for worker in offers}
        needed = {host.name for host in topology.dnn_hosts if self._workers(host)}
        needed.add(topology.dispatcher_host.name)
        data_hosts = sum(host.name in heard for host in topology.data_hosts)
        if not needed <= heard or data_hosts < min(self._settings.min_data_hosts, len(topology.data_hosts)):
            return False
        self._enough_since = now if self._enough_since is None else self._enough_since
        return now - self._enough_since > LATE_WORKERS_S
