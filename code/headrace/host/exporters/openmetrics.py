"""Serve figures to Prometheus and other readers of OpenMetrics, at `http://LEADER:PORT/metrics`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.host.exporters.exporter import Record, Write

OF_A_STEP = {
    "step_ms": ("headrace_step_seconds", "Mean time of recent training steps", 1e-3),
    "data_wait_ms": ("headrace_data_wait_seconds", "Mean time that recent steps waited for data", 1e-3),
    "samples_per_s": ("headrace_samples_per_second", "Samples a second, over all ranks", 1.0),
    "input_bound": ("headrace_input_bound_ratio", "Share of the step time spent waiting for data, 0 to 1", 1.0),
    "step": ("headrace_steps", "Training steps made", 1.0),
}
"""Metric for each field of a step's record: name, description, and the factor that converts the field to its unit."""
OF_A_GROUP = {
    "cpu_utilization": ("headrace_cpu_utilization_ratio", "CPU use of a group's hosts, 0 to 1"),
    "gpu_utilization": ("headrace_gpu_utilization_ratio", "GPU use of a group's hosts, 0 to 1"),
    "memory_bytes": ("headrace_memory_bytes", "Memory of the job's processes on a group's hosts"),
    "network_in_bytes_per_s": ("headrace_network_receive_bytes_per_second", "Bytes a second to a group's hosts"),
    "network_out_bytes_per_s": ("headrace_network_transmit_bytes_per_second", "Bytes a second from a group's hosts"),
}
OF_A_WORKER = {
    "batches_per_s": ("headrace_worker_batches_per_second", "Batches a second that ranks receive from a worker"),
    "bytes_per_s": ("headrace_worker_bytes_per_second", "Bytes a second that ranks receive from a worker"),
}


def to_endpoint(port: int, job_name: str, say: Callable[[], None]) -> Write:
    """Serve the latest figures on this port until the process ends; return the function that updates them.

    Calls `say` once the port is open. Raises `OSError` if it cannot be opened, `ImportError` without prometheus_client.
    """
    from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

    registry = CollectorRegistry()
    steps = {field: Gauge(name, text, ["job"], registry=registry) for field, (name, text, _) in OF_A_STEP.items()}
    of_parts = {
        kind: {field: Gauge(name, text, ["job", label], registry=registry) for field, (name, text) in fields.items()}
        for kind, label, fields in (("groups", "group", OF_A_GROUP), ("workers", "worker", OF_A_WORKER))
    }
    events = Counter("headrace_events", "Checkpoints, restarts, lost hosts", ["job", "event"], registry=registry)
    start_http_server(port, registry=registry)
    say()

    def write(records: Sequence[Record]) -> None:
        for record in records:
            for field in steps.keys() & record.keys():
                steps[field].labels(job_name).set(float(record[field]) * OF_A_STEP[field][2])
            for kind, gauges in of_parts.items():
                for part, figures in record.get(kind, {}).items():
                    for field in gauges.keys() & figures.keys():
                        gauges[field].labels(job_name, part).set(figures[field])
            if "event" in record:
                events.labels(job_name, record["event"]).inc()

    return write
