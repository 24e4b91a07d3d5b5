"""Export figures to an MLflow run at MLFLOW_TRACKING_URI, in the experiment that MLFLOW_EXPERIMENT_NAME names.

For AWS's managed tracking server, the URI is the server's ARN, and the plugin `sagemaker-mlflow` must be installed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.host.exporters.exporter import Record
from headrace.job.settings import MLFLOW_EXPERIMENT_VARIABLE, MLFLOW_URI_VARIABLE

OF_A_STEP = {
    "step_ms": "step_time_ms", "data_wait_ms": "data_wait_ms", "samples_per_s": "samples_per_s",
    "input_bound": "input_bound_share",
}  # fmt: skip
OF_A_JOB = ("input_bound_share", "ideal_step_time_ms", "train_s")
_NOT_IN_NAMES = re.compile(r"[^/\w.\- :]")
"""Characters that MLflow refuses in a metric's name; one such name makes the whole call fail."""
MOST_IN_A_BATCH = 1000
"""The number of metrics that MLflow accepts in one call."""


class MlflowRun:
    """One MLflow run, which begins when the object is made."""

    def __init__(self, job_name: str, environ: Mapping[str, str]) -> None:
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=environ[MLFLOW_URI_VARIABLE])
        name = environ.get(MLFLOW_EXPERIMENT_VARIABLE) or "headrace"
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name)
        self._run_id = self._client.create_run(number, run_name=job_name).info.run_id
        self._step = 0

    def write(self, records: Sequence[Record]) -> None:
        """Log these records. Raises whatever MLflow raises."""
        summary = next((record["summary"] for record in records if "summary" in record), None)
        try:
            metrics = [metric for record in records for metric in self._metrics(record)]
            for first in range(0, len(metrics), MOST_IN_A_BATCH):
                self._client.log_batch(self._run_id, metrics=metrics[first : first + MOST_IN_A_BATCH])
            if summary:
                self._log_summary(summary)
        finally:
            if summary:
                self._client.set_terminated(self._run_id, "FINISHED" if summary["outcome"] == "succeeded" else "FAILED")

    def _metrics(self, record: Record) -> list[Any]:
        from mlflow.entities import Metric

        self._step = int(record.get("step", self._step))
        values = {name: record[field] for field, name in OF_A_STEP.items() if field in record}
        for part, figures in [*record.get("groups", {}).items(), *record.get("workers", {}).items()]:
            values |= {f"{part}/{name}": value for name, value in figures.items()}
        for name, value in record.get("summary", {}).get("final_metrics", {}).items():
            if value is not None:  # None stands for NaN and infinity
                values[f"final/{name}"] = value
        values |= {name: record["summary"][name] for name in OF_A_JOB if "summary" in record}
        stamp = int(record["time"] * 1000)
        return [Metric(_NOT_IN_NAMES.sub("_", name), float(value), stamp, self._step) for name, value in values.items()]

    def _log_summary(self, summary: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        told = ("tf_data_mode", "world_size", "global_batch_size", "is_hetero", "local_workers")
        self._client.log_batch(self._run_id, params=[Param(name, str(summary[name])) for name in told])
