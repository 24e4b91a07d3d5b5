"""Define CloudWatch metrics: SageMaker finds them in the launcher's log lines with regular expressions."""

from __future__ import annotations

_NUMBER = r"([0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)"
# Metric name: the log event and its field (see `headrace.events`).
METRICS = {
    "headrace:step_ms": ("step", "step_ms"),
    "headrace:samples_per_s": ("step", "samples_per_s"),
    "headrace:input_bound_share": ("step", "input_bound"),
    "headrace:ideal_step_ms": ("ideal_step", "step_ms"),
    "headrace:workers": ("workers_ready", "n"),
    "headrace:train_s": ("training_finished", "train_s"),
}


def metric_definitions() -> list[dict[str, str]]:
    """Return CreateTrainingJob's `MetricDefinitions`: metric names, with regular expressions that capture the value."""
    return [
        {"Name": name, "Regex": rf"headrace event={event}\b(?: \w+=\S*)* {field}={_NUMBER}"}
        for name, (event, field) in METRICS.items()
    ]
