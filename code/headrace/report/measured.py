"""Read a run's measurements, from which `headrace plan` predicts other jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.cluster.topology import DATA_GROUP
from headrace.errors import InputError
from headrace.job.instances import InstanceTable, InstanceType
from headrace.job.limited_by import PROCESS, computing_limit, limited_by
from headrace.report.predict import GIB, TRANSFER_CPU_S_PER_GIB, Group, Placement, Workload, predict
from headrace.report.runs import was_interrupted

FEW_STEPS = 20
SHORT_EPOCH = 50
RECEIVE_CPU_S_PER_BATCH = 3e-3
"""Limit on the CPU seconds for receiving a batch, without those for its bytes. CPU time above it is busy waiting."""
NO_LIMIT = float("inf")


@dataclass(frozen=True)
class Measured:
    """Measurements of a run, as the plan needs them."""

    work: Workload
    trainer: Group
    trainer_type: InstanceType | None
    """Instance type of the dnn hosts; None if not known, as in a simulation without `--as`. Then no price is known."""
    trainer_type_name: str
    """Name of the dnn hosts' instance type. For a simulated run, it is the type given with `--as`, or empty."""
    framework: str
    is_simulated: bool
    """True if the run was simulated and `--as` is not given."""
    has_service: bool
    """True if workers made the batches."""
    has_data_hosts: bool
    step_s: float
    """Mean step time that the run measured, in seconds."""
    steps: int
    steps_per_epoch: int
    """Steps of an epoch; 0 if no epoch was finished."""
    ranks_per_host: float
    stands_for_type: bool
    """True if the run was simulated and `--as` is given for the dnn hosts."""
    outside_share: float
    """Share of the training time that was spent outside of steps."""
    own_step_s: float | None
    """Step time in seconds that `predict` gives for the run's hosts; None if simulated hosts may share processors."""
    least_step_s: float | None
    """Predicted step time (seconds) if hosts share no processors. If `step_s` is far less, the prediction is wrong."""
    notes: tuple[str, ...]
    """Assumptions behind the figures, and figures that were not measured."""

    @property
    def alone_waits(self) -> float | None:
        """Share of the run's time that was spent waiting for data; None if the run had data hosts."""
        return None if self.has_data_hosts else max(1 - self.work.ideal_step_s / self.step_s, 0.0)


def measured(summary: Mapping[str, Any], table: InstanceTable, stands_for: InstanceType | None = None) -> Measured:
    """Return the measurements in a run's summary, as the plan needs them.

    Args:
        stands_for: the instance type, given by `--as`, that simulated dnn hosts stand for; None without `--as`.

    Raises:
        InputError: the run has measured too little.
    """
    _check(summary)
    hosts = list(summary["hosts"].values())
    dnn = [host for host in hosts if host["group"] != DATA_GROUP]
    if not dnn or any(host["cpus"] < 1 for host in hosts):
        raise InputError(f"{summary['job_name']} does not say how many CPUs its hosts have; plan from another run")
    simulated = bool(summary.get("simulated"))
    if stands_for and not simulated:
        raise InputError(f"{summary['job_name']} was not simulated: leave out --as, which is for simulated runs")
    kind = stands_for if simulated else table.get(dnn[0]["instance_type"])
    # A simulated host's processors stand for all vCPUs of its type, so CPU times are multiplied by the ratio.
    scale = kind.vcpus / dnn[0]["cpus"] if kind and stands_for else 1.0
    work, notes = _workload(summary, hosts, scale)
    if kind and stands_for:
        notes.append(
            f"the run was simulated: a dnn host's CPUs ({dnn[0]['cpus']}) stand for {kind.vcpus} vCPUs of {kind.name}"
        )
        notes.append(f"the model's arithmetic is assumed to take as long on {kind.name} as it took here")
        notes += _ranks_note(summary["world_size"] / len(dnn), kind, work.batch, len(dnn))
    elif not kind:
        notes.append("networks are assumed to be unlimited")
    notes.append("vCPUs of all instance types are assumed to be as fast as those of this run's hosts")
    if kind:
        notes.append("network rates are those of the table; instances with up to 16 vCPUs reach them only for minutes")
    elif simulated:
        notes.append("hosts are assumed not to share processors; simulated hosts that share processors are slower")
    trainer = group_of(len(dnn), kind) if kind else Group(len(dnn), dnn[0]["cpus"], NO_LIMIT)
    has_data_hosts, least_step_s = len(dnn) < len(hosts), _least_step_s(work, trainer, summary, table)
    return Measured(
        work=work,
        trainer=trainer,
        trainer_type=kind,
        trainer_type_name=kind.name if kind else "" if simulated else dnn[0]["instance_type"],
        framework=summary["framework"],
        is_simulated=bool(summary.get("simulated")) and kind is None,
        has_service=summary["tf_data_mode"] == "service",
        has_data_hosts=has_data_hosts,
        step_s=summary["step_time_ms"]["mean"] / 1000,
        steps=summary["steps"],
        steps_per_epoch=summary["steps_per_epoch"],
        stands_for_type=bool(stands_for),
        outside_share=_outside_share(summary),
        ranks_per_host=summary["world_size"] / len(dnn),
        own_step_s=None if summary.get("simulated") and has_data_hosts else least_step_s,
        least_step_s=least_step_s,
        notes=tuple(notes),
    )


def _outside_share(summary: Mapping[str, Any]) -> float:
    step_s = summary["step_time_ms"]["mean"] / 1000
    # The mean excludes the first step, which takes longer: it compiles and waits for a cold pipeline. Add the excess.
    steps_s = summary["steps"] * step_s + max(summary["first_step_s"] - step_s, 0.0)
    return max(1 - steps_s / summary["train_s"], 0.0) if summary["train_s"] > 0 else 0.0


def _least_step_s(work: Workload, trainer: Group, summary: Mapping[str, Any], table: InstanceTable) -> float | None:
    """Predict the step time of the run's own hosts. Simulated hosts are assumed not to share processors."""
    data = [host for host in summary["hosts"].values() if host["group"] == DATA_GROUP]
    has_service = summary["tf_data_mode"] == "service"
    if not data:
        return predict(work, trainer, Group(0, 0, NO_LIMIT), "trainer", has_service).step_s
    placement: Placement = "data" if summary.get("local_workers") == "off" else "both"
    if summary.get("simulated"):
        return predict(work, trainer, Group(len(data), data[0]["cpus"], NO_LIMIT), placement).step_s
    kind = table.get(data[0]["instance_type"])
    return predict(work, trainer, group_of(len(data), kind), placement).step_s if kind else None


def _ranks_note(ranks: float, kind: InstanceType, batch: int, hosts: int) -> list[str]:
    """Return advice on a rank's batch size if the run's `ranks` per host differ from the number of GPUs of `kind`."""
    theirs = max(kind.gpus, 1)
    if ranks == theirs:
        return []
    of_a_rank = round(batch / hosts / theirs) or 1
    return [
        f"each {kind.name} has {theirs} ranks, a dnn host of the run had {ranks:g}. Give each rank a batch of "
        f"{of_a_rank}, so that a step still has {batch} samples"
    ]


def group_of(count: int, kind: InstanceType) -> Group:
    """Return a group of `count` hosts of one instance type."""
    return Group(count, kind.vcpus, kind.network_gbps * 1e9 / 8)


def _check(summary: Mapping[str, Any]) -> None:
    name = summary["job_name"]
    if summary["steps"] < 1 or summary["step_time_ms"]["mean"] <= 0:
        raise InputError(f"{name} {summary['outcome']} and measured no step; plan from a run that has trained")
    if summary["ideal_step_time_ms"] <= 0:
        raise InputError(f"{name} has no ideal step time: pass callbacks.Measure to `fit`, or use callbacks.Training")
    if summary["rank_cpu_s_per_step"] <= 0:
        raise InputError(f"{name} has not measured the CPU time of its steps; plan from another run, with more steps")
    if summary["world_size"] < 1 or summary["global_batch_size"] < 1:
        raise InputError(f"{name} does not say its number of ranks or its batch size; plan from another run")


def _workload(summary: Mapping[str, Any], hosts: list[Mapping[str, Any]], scale: float) -> tuple[Workload, list[str]]:
    """Return the workload, with CPU times multiplied by `scale`, and notes on how it was estimated."""
    batch, sample_bytes = summary["global_batch_size"], _sample_bytes(summary)
    per_sample = scale * summary["world_size"] / batch
    rank, compute = (summary[key] * per_sample for key in ("rank_cpu_s_per_step", "compute_cpu_s_per_step"))
    by_size = TRANSFER_CPU_S_PER_GIB * sample_bytes / GIB
    notes = []
    if summary["outcome"] != "succeeded":
        how = "was interrupted" if was_interrupted(summary) else summary["outcome"]
        notes.append(f"the run {how} after {summary['steps']} steps; the plan is based on these steps")
    elif summary["steps"] < FEW_STEPS:
        notes.append(f"the run made only {summary['steps']} steps; for a better plan, make {FEW_STEPS} or more")
    if 0 < summary["steps_per_epoch"] < SHORT_EPOCH:
        notes.append(
            f"an epoch has only {summary['steps_per_epoch']} steps, so prefetching distorts the CPU time of a sample"
        )
    if not sample_bytes:
        notes.append("a sample's size is not known (no fixed shape), so the plan ignores the cost of sending samples")
    if summary["tf_data_mode"] == "local":
        make, receive = max(rank - compute, 0.0), by_size
        notes.append(
            f"sending or receiving a GiB takes {TRANSFER_CPU_S_PER_GIB} CPU seconds (make bench BENCH=transport)"
        )
        if not compute:
            notes.append("the model's own CPU time was not measured: the ranks' whole CPU time counts as preprocessing")
    else:
        workers_s = sum(host["cpu_s"].get("worker", 0.0) for host in hosts)
        if not workers_s:
            notes.append("the workers' CPU time was not measured, so making batches is assumed to take no CPU time")
        make = max(scale * workers_s / _samples_made(summary) - by_size, 0.0)
        if not compute:
            compute = max(rank - by_size, 0.0)
            notes.append("the cost of receiving was not measured: it is estimated from a sample's bytes")
        # Ranks also spend CPU time on waiting for batches and for each other, so limit what counts as receiving.
        most = by_size + scale * RECEIVE_CPU_S_PER_BATCH * summary["world_size"] / batch
        receive = min(max(rank - compute, 0.0), most)
    ideal_s = _ideal_s(summary)
    if summary["ideal_step_from"] == "waits":
        notes.append(
            "the ideal step time is estimated as step time minus waiting, and may be too long: "
            "call training.measure_ideal_step before the loop to measure it"
        )
    limit = computing_limit(summary)
    if limited_by(summary) == PROCESS:
        limit, ideal_s = PROCESS, max(ideal_s, summary["step_parts_ms"]["computing"] / 1000)
    return Workload(batch, ideal_s, make, compute, sample_bytes, receive, by_size, limit), notes


def _ideal_s(summary: Mapping[str, Any]) -> float:
    """Return the mean seconds of a step that does not wait for data. Callbacks that are slow and rare count too."""
    ideal_s = float(summary["ideal_step_time_ms"]) / 1000
    if not summary["between_steps_ms"]:
        return ideal_s
    return max(ideal_s, float((1 - summary["input_bound_share"]) * summary["step_time_ms"]["mean"]) / 1000)


def _delivered(summary: Mapping[str, Any], figure: str) -> float:
    """Return the sum of `figure` over all workers; 0 if it was not counted."""
    return float(sum(worker.get(figure) or 0 for worker in summary.get("workers", {}).values()))


def _samples_made(summary: Mapping[str, Any]) -> float:
    """Return how many samples the workers made, including those for evaluations and those never used."""
    of_a_rank = float(summary["global_batch_size"] / summary["world_size"])
    return max(_delivered(summary, "batches") * of_a_rank, float(summary["steps"] * summary["global_batch_size"]))


def _sample_bytes(summary: Mapping[str, Any]) -> float:
    """Return the size of a sample on the network in bytes. If it varies, return the mean over all received batches."""
    batches_per_s = _delivered(summary, "batches_per_s")
    if summary["sample_bytes"] > 0 or not batches_per_s:
        return max(float(summary["sample_bytes"]), 0.0)
    of_a_rank = float(summary["global_batch_size"] / summary["world_size"])
    return _delivered(summary, "bytes_per_s") / batches_per_s / of_a_rank
