"""The data services: the choice for a job, and the interface that the launcher uses (`contract`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.cluster.topology import Topology
from headrace.errors import InputError
from headrace.frameworks import FRAMEWORKS
from headrace.host.services.contract import DataService
from headrace.host.services.tf_data import TfDataService
from headrace.host.services.torch_feed import TorchFeed
from headrace.job.settings import Settings, default_mode

SERVICES: dict[str, Callable[[Topology, Settings, Path, Path, Sequence[str]], DataService]] = {
    "tf_data": TfDataService,
    "torch_feed": TorchFeed,
    "local": DataService,
}
"""Constructors by name; each takes topology, settings, source folder, work folder and the script's arguments."""


def data_service(
    topology: Topology, settings: Settings, source_dir: Path, work_dir: Path, arguments: Sequence[str]
) -> DataService:
    """Make the data service that `tf_data_mode` names; by default the framework's if there is a data group, else none.

    Raises:
        InputError: batches must come from workers, but `num_of_data_workers` is 0.
    """
    mode = settings.tf_data_mode or default_mode(topology.is_hetero)
    if mode == "service" and settings.num_of_data_workers < 1:
        raise InputError(
            "num_of_data_workers is 0, but this job's batches come from workers (tf_data_mode service): give 1 or more"
        )
    name = FRAMEWORKS[settings.framework].data_service if mode == "service" else "local"
    return SERVICES[name](topology, settings, source_dir, work_dir, arguments)
