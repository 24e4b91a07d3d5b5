"""Choose the job's data service, which makes batches for ranks. `contract` has the interface of all services."""

from __future__ import annotations

from collections.abc import Callable

from headrace.errors import InputError
from headrace.frameworks import FRAMEWORKS
from headrace.host.host_plan import HostPlan
from headrace.host.services.contract import DataService
from headrace.host.services.tf_data import TfDataService
from headrace.host.services.torch_feed import TorchFeed
from headrace.job.settings import default_mode

SERVICES: dict[str, Callable[[HostPlan], DataService]] = {
    "tf_data": TfDataService,
    "torch_feed": TorchFeed,
    "local": DataService,
}
"""Constructors of the data services, by name."""


def data_service(plan: HostPlan) -> DataService:
    """Make the data service that `tf_data_mode` asks for; by default `service` if there is a data group, else `local`.

    Raises:
        InputError: batches must come from workers, but `num_of_data_workers` is 0.
    """
    settings = plan.settings
    mode = settings.tf_data_mode or default_mode(plan.topology.is_hetero)
    if mode == "service" and settings.num_of_data_workers < 1:
        raise InputError(
            "num_of_data_workers is 0, but this job's batches come from workers (tf_data_mode service): give 1 or more"
        )
    name = FRAMEWORKS[settings.framework].data_service if mode == "service" else "local"
    return SERVICES[name](plan)
