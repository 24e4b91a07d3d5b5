"""Which outlets a job has: its files always, the others where they are asked for."""

from __future__ import annotations

from headrace.cluster.paths import METRICS, TENSORBOARD
from headrace.host.exporters.exporter import Outlet
from headrace.host.exporters.jsonl import to_file
from headrace.host.exporters.mlflow import MlflowRun
from headrace.host.exporters.openmetrics import to_endpoint
from headrace.host.exporters.tensorboard import to_event_file
from headrace.host.host_plan import HostPlan
from headrace.host.log import HostLog
from headrace.job.settings import MLFLOW_URI_VARIABLE, without_password


def open_outlets(plan: HostPlan, log: HostLog) -> list[Outlet]:
    """The leader's. One that cannot be opened takes nothing, and the log says why."""
    port, job_name, path = plan.settings.metrics_port, plan.settings.job_name, plan.paths.output_dir / METRICS
    folder = plan.paths.output_dir / TENSORBOARD
    outlets = [
        Outlet(METRICS, lambda: to_file(path), log.say),
        Outlet("TensorBoard", lambda: to_event_file(folder), log.say),
    ]
    if port:
        served = lambda: log.event("metrics_served", port=port)  # noqa: E731
        outlets.append(Outlet(f"OpenMetrics on port {port}", lambda: to_endpoint(port, job_name, served), log.say))
    if uri := plan.environ.get(MLFLOW_URI_VARIABLE):
        name = f"MLflow at {without_password(uri)}"
        outlets.append(Outlet(name, lambda: MlflowRun(job_name, plan.environ).write, log.say))
    return outlets
