"""A data service without TensorFlow: a dispatcher on the first data host, a worker on every host.

The servers stand in for those of tf.data service: they have the same ports and kinds, and the launcher restarts them.
Each server sends one byte to each client.
"""

import sys

from headrace.cluster.addresses import DISPATCHER_PORT
from headrace.host.services.contract import Server


class TokenService:
    mode = "service"
    waited_for = "tokens"

    def __init__(self, plan):
        self._topology, self._settings, self._script = plan.topology, plan.settings, plan.source_dir / "train_data.py"
        self._up = set()

    def servers(self, host):
        endpoint = self._settings.endpoint(host.name)
        server = [sys.executable, str(self._script)]
        found = [Server("worker", "worker", [port := endpoint.first_worker_port], [*server, "worker", str(port)])]
        if host == self._topology.dispatcher_host:
            argv = [*server, "dispatcher", str(DISPATCHER_PORT)]
            found.insert(0, Server("dispatcher", "dispatcher", [DISPATCHER_PORT], argv))
        return found

    def take_event(self, event):
        if event.name == "token_server_up":
            self._up.add(event.fields["kind"])

    def report(self):
        return {"up": sorted(self._up)}

    def hear(self, decision):
        pass

    def trainer_environ(self):
        endpoints = [self._settings.endpoint(host.name) for host in self._topology.hosts]
        workers = ",".join(f"{each.address}:{each.first_worker_port}" for each in endpoints)
        return {"WORKERS": workers, "DISPATCHER": f"{endpoints[0].address}:{DISPATCHER_PORT}"}

    def needs(self, host):
        return host == self._topology.dispatcher_host.name

    def decide(self, reports, without, now):
        return None

    def worker_names(self):
        return {}

    def ready(self, reports):
        return sum("worker" in report.get("up", ()) for report in reports.values())

    def missing(self, reports, without):
        missing = len(self._topology.hosts) - len(without) - self.ready(reports)
        return [f"{missing} workers"] if missing > 0 else []
