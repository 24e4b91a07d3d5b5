"""Open a job's exporters. Files always get the job's figures; OpenMetrics and MLflow get them if the user asks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from headrace.cluster.run_files import METRICS, TENSORBOARD
from headrace.host.exporters.exporter import Exporter, Record, Write
from headrace.host.exporters.mlflow import MlflowRun
from headrace.host.exporters.openmetrics import to_endpoint
from headrace.host.exporters.tensorboard import to_event_file
from headrace.host.host_plan import HostPlan
from headrace.host.log import HostLog
from headrace.job.settings import MLFLOW_URI_VARIABLE, without_password


def open_exporters(plan: HostPlan, log: HostLog) -> list[Exporter]:
    """Return the leader's exporters. If an exporter cannot open its destination, it logs why and drops its records."""
    port, job_name, path = plan.settings.metrics_port, plan.settings.job_name, plan.paths.output_dir / METRICS
    folder = plan.paths.output_dir / TENSORBOARD
    exporters = [
        Exporter(METRICS, lambda: to_file(path), log.say),
        Exporter("TensorBoard", lambda: to_event_file(folder), log.say),
    ]
    if port:
        served = lambda: log.event("metrics_served", port=port)  # noqa: E731
        exporters.append(Exporter(f"OpenMetrics on port {port}", lambda: to_endpoint(port, job_name, served), log.say))
    if uri := plan.environ.get(MLFLOW_URI_VARIABLE):
        name = f"MLflow at {without_password(uri)}"
        exporters.append(Exporter(name, lambda: MlflowRun(job_name, plan.environ).write, log.say))
    return exporters


def to_file(path: Path) -> Write:
    """Return a function that appends records to a file. Rank 0 also appends to this file, so each call is one write."""

    def write(records: Sequence[Record]) -> None:
        # Rank 0 writes the steps, and the summary has its own file.
        lines = [json.dumps(record) + "\n" for record in records if "step" not in record and "summary" not in record]
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="utf-8") as file:
            file.write("".join(lines))

    return write
