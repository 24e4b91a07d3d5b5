"""Find what limits the speed of a job's steps, from its summary. The summary, the report and the plan use it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.cluster.topology import DATA_GROUP

WAITING = "waiting for data"
COPYING = "copying to the GPU"
PROCESS = "the training process"
GPU = "the GPU"
ARITHMETIC = "the model's arithmetic"
"""Name of the limit if steps do not wait for data and no GPU utilization is known, as in training on CPUs."""
INPUT_BOUND_FROM = 0.1
"""If steps wait for data for at most this share of their time (0 to 1), the computation limits their speed."""
BUSY_FROM = 0.85
"""If the GPUs are busy for at least this share of an ideal step (0 to 1), the GPUs limit the speed."""
FEW_SAMPLES = 5
"""Minimum number of utilization samples for a meaningful mean. GPUs are sampled once a second."""
REMEDIES = {
    COPYING: "What helps: copy a batch to the GPU from pinned memory during the previous step (PyTorch: the loader's "
    "device=; TensorFlow: data.prefetch_to_device). Smaller types, such as uint8, help too.",
    PROCESS: "A step's time goes to Python code, kernel launches and receiving batches, so more data hosts or a larger "
    "GPU do not help. What helps: torch.compile and CUDA graphs (mode='reduce-overhead'), larger batches, "
    "Keras's steps_per_execution, --local_workers off, more processors on the dnn host.",
    GPU: "What helps: mixed precision (bfloat16), or a larger GPU. More data hosts do not help.",
}
"""Advice by limit. There is none for `ARITHMETIC`. For `WAITING`, `headrace plan` says how many data hosts to rent."""


def limited_by(summary: Mapping[str, Any]) -> str:
    """Return what limits a run's steps; empty if too little was measured."""
    step_ms, ideal_ms = summary["step_time_ms"]["mean"], summary["ideal_step_time_ms"]
    share = summary["input_bound_share"]
    if not summary["steps"] or (not ideal_ms and share in (0, 1)):
        return ""
    if share <= INPUT_BOUND_FROM:
        return computing_limit(summary)
    parts, longer_ms = summary.get("step_parts_ms") or {}, share * step_ms
    copying_ms = parts.get("copying") or 0.0
    if copying_ms > longer_ms / 2:
        return COPYING
    has_data_hosts = any(host["group"] == DATA_GROUP for host in summary["hosts"].values())
    told = bool(parts.get("computing"))
    return PROCESS if has_data_hosts and told and parts["waiting"] + copying_ms < longer_ms / 2 else WAITING


def computing_limit(summary: Mapping[str, Any]) -> str:
    """Return what limits a step that does not wait for data."""
    busy = gpu_busy_share(summary)
    return ARITHMETIC if busy is None else GPU if busy >= BUSY_FROM else PROCESS


def gpu_busy_share(summary: Mapping[str, Any]) -> float | None:
    """Return how busy GPUs are in an ideal step (one without waiting), as a share from 0 to 1; None: not known."""
    dnn = [host for host in summary["hosts"].values() if host["group"] != DATA_GROUP]
    ranks, ideal_ms = summary["world_size"] / max(len(dnn), 1), summary["ideal_step_time_ms"]
    found = [host["gpu"] for host in dnn if host.get("gpu")]
    samples = [each.get("samples") for each in found]
    if not found or not ranks or not ideal_ms or any(isinstance(each, int) and each < FEW_SAMPLES for each in samples):
        return None
    # GPUs without a rank are idle, so divide by the number of GPUs with a rank.
    shares = [each["utilization"] * each["count"] / max(min(each["count"], ranks), 1) for each in found]
    # A GPU does nothing while a step waits: all its busy time belongs to the ideal step.
    return float(min(sum(shares) / len(shares) * summary["step_time_ms"]["mean"] / ideal_ms, 1.0))
