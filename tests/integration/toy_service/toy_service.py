"""A data service with one server per host. A server sends its host's name; on data hosts it ends after one client."""

import sys

from headrace.cluster.run_files import write_json
from headrace.host.services.contract import DataService, Decision, Server


class ToyService(DataService):
    mode = "service"
    waited_for = "toys"

    def __init__(self, plan):
        super().__init__(plan)
        self._heard = plan.paths.work_dir / "heard.json"
        self._up = False

    def servers(self, host):
        words = "1" if host.role == "data" else "1000"
        port = self._settings.endpoint(host.name).first_worker_port
        argv = [sys.executable, str(self._plan.source_dir / "toy_server.py"), host.name, str(port), words]
        return [Server("toy", "toy-0", [port], argv, {"TOY": host.name})]

    def take_event(self, event):
        self._up = self._up or event.name == "toy_up"

    def report(self):
        return {"up": self._up}

    def hear(self, decision):
        write_json(self._heard, dict(decision))  # atomic, because ranks read the file while this method writes it again

    def trainer_environ(self):
        places = [self._settings.endpoint(host.name) for host in self._topology.hosts]
        addresses = [f"{place.address}:{place.first_worker_port}" for place in places]
        return {"TOYS": ",".join(addresses), "TOY_WORD": str(self._heard)}

    def decide(self, reports, without, now):
        return Decision("toys_agreed", {"word": "hello"}) if self.ready(reports) == len(self._topology.hosts) else None

    def ready(self, reports):
        return sum(bool(report.get("up")) for report in reports.values())

    def missing(self, reports, without):
        missing = len(self._topology.hosts) - len(without) - self.ready(reports)
        return [f"{missing} toys"] if missing > 0 else []
