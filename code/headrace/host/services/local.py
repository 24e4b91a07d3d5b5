"""Local mode: each rank makes its batches itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.cluster.topology import Topology
from headrace.events import Event
from headrace.host.services.contract import KINDS, Decision, Report, Server
from headrace.job.settings import Settings


class NoDataService:
    """The data service of local mode: it starts no server and waits for none."""

    mode = "local"
    kinds = KINDS
    waited_for = "data, or for itself"

    def __init__(
        self, topology: Topology, settings: Settings, source_dir: Path, work_dir: Path, arguments: Sequence[str]
    ) -> None:
        pass

    def servers(self) -> list[Server]:
        return []

    def take_event(self, event: Event) -> None:
        pass

    def report(self) -> Report:
        return {}

    def hear(self, decision: Mapping[str, Any]) -> None:
        pass

    def trainer_environ(self) -> dict[str, str]:
        return {"HEADRACE_TF_DATA_MODE": self.mode}

    def needs(self, host: str) -> bool:
        return False

    def decide(self, reports: Mapping[str, Report], without: Collection[str], now: float) -> Decision | None:
        return None

    def worker_names(self) -> Mapping[str, str]:
        return {}

    def ready(self, reports: Mapping[str, Report]) -> int:
        return 0

    def missing(self, reports: Mapping[str, Report], without: Collection[str]) -> list[str]:
        return []
