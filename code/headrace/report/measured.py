"""What a run has measured of its own workload, for the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import InputError
from headrace.instances import InstanceTable, InstanceType
from headrace.report.predict import GIB, TRANSFER_CPU_S_PER_GIB, Group, Workload
from headrace.topology import DATA_GROUP

FEW_STEPS = 20
SHORT_EPOCH = 50
NO_LIMIT = float("inf")


@dataclass(frozen=True)
class Measured:
    """A run as the plan takes it."""

    work: Workload
    trainer: Group
    trainer_type: InstanceType | None
    """None: not known, or only simulated; then nothing has a price."""
    framework: str
    is_simulated: bool
    """With no word of which types its hosts stand for."""
    has_service: bool
    """Whether workers made the batches."""
    has_data_hosts: bool
    step_s: float
    """Its own mean."""
    steps: int
    steps_per_epoch: int
    """0: no epoch was finished."""
    notes: tuple[str, ...]
    """What was assumed, or not measured."""


def measured(summary: Mapping[str, Any], table: InstanceTable, stands_for: str | None = None) -> Measured:
    """What a summary says of its workload.

    Args:
        table: of instance types.
        stands_for: the type as which the dnn hosts of a simulated run are taken.

    Raises:
        InputError: the run has measured too little.
    """
    _check(summary)
    hosts = list(summary["hosts"].values())
    dnn = [host for host in hosts if host["group"] != DATA_GROUP]
    if not dnn or dnn[0]["cpus"] < 1:
        raise InputError(f"{summary['job_name']} does not say how many CPUs its dnn hosts have")
    kind = _type(dnn[0], summary, table, stands_for)
    # A simulated host's processors stand for all of the type's: what it took them, it takes those.
    scale = kind.vcpus / dnn[0]["cpus"] if kind and stands_for else 1.0
    work, notes = _workload(summary, hosts, scale)
    if kind and stands_for:
        notes.append(
            f"the run was simulated: {dnn[0]['cpus']} CPU of its dnn hosts stands for {kind.vcpus} of {kind.name}"
        )
        notes.append(f"the model's arithmetic is taken to last as long on {kind.name} as it did here")
        notes += _ranks_note(summary["world_size"] / len(dnn), kind, work.batch, len(dnn))
    elif not kind:
        notes.append("networks are taken for unlimited")
    notes.append("a vCPU of any type makes as many samples as one of this run's hosts")
    return Measured(
        work=work,
        trainer=group_of(len(dnn), kind) if kind else Group(len(dnn), dnn[0]["cpus"], NO_LIMIT),
        trainer_type=kind,
        framework=summary["framework"],
        is_simulated=bool(summary.get("simulated")) and kind is None,
        has_service=summary["tf_data_mode"] == "service",
        has_data_hosts=len(dnn) < len(hosts),
        step_s=summary["step_time_ms"]["mean"] / 1000,
        steps=summary["steps"],
        steps_per_epoch=summary["steps_per_epoch"],
        notes=tuple(notes),
    )


def _ranks_note(ranks: float, kind: InstanceType, batch: int, hosts: int) -> list[str]:
    """A job on the type itself has one rank for each GPU, and so other steps, unless its batches are larger."""
    theirs = max(kind.gpus, 1)
    if ranks == theirs:
        return []
    return [
        f"a step has the run's {batch} samples: give each rank a batch of {batch / hosts / theirs:g}, since a host of "
        f"{kind.name} has {theirs} where the run's had {ranks:g}"
    ]


def group_of(count: int, kind: InstanceType) -> Group:
    """So many hosts of a type."""
    return Group(count, kind.vcpus, kind.network_gbps * 1e9 / 8)


def _check(summary: Mapping[str, Any]) -> None:
    name = summary["job_name"]
    if summary["steps"] < 1 or summary["step_time_ms"]["mean"] <= 0:
        raise InputError(
            f"{name} measured no step, so there is nothing to plan with; its outcome: {summary['outcome']}"
        )
    if summary["ideal_step_time_ms"] <= 0:
        raise InputError(f"{name} has no ideal step time: give `fit` callbacks.Measure, or use callbacks.Training")
    if summary["rank_cpu_s_per_step"] <= 0:
        raise InputError(f"{name} has not measured the CPU time of its steps: an older run, or one of very few steps")
    if summary["world_size"] < 1 or summary["global_batch_size"] < 1:
        raise InputError(f"{name} does not say how many ranks or samples a step has")


def _workload(summary: Mapping[str, Any], hosts: list[Mapping[str, Any]], scale: float) -> tuple[Workload, list[str]]:
    """CPU seconds a sample, multiplied by `scale`, and what is to be said of them."""
    batch, sample_bytes = summary["global_batch_size"], max(summary["sample_bytes"], 0.0)
    per_sample = scale * summary["world_size"] / batch
    rank, compute = (summary[key] * per_sample for key in ("rank_cpu_s_per_step", "compute_cpu_s_per_step"))
    by_size = TRANSFER_CPU_S_PER_GIB * sample_bytes / GIB
    notes = []
    if summary["outcome"] != "succeeded":
        notes.append(f"the run {summary['outcome']}; the plan is made from the {summary['steps']} steps that it made")
    elif summary["steps"] < FEW_STEPS:
        notes.append(f"the run made {summary['steps']} steps; {FEW_STEPS} and more tell better")
    if 0 < summary["steps_per_epoch"] < SHORT_EPOCH:
        notes.append(
            f"its epochs have {summary['steps_per_epoch']} steps: what is read ahead blurs the CPU time of a sample"
        )
    if not sample_bytes:
        notes.append("the bytes of a sample are not known (its shape is open): sending it costs nothing here")
    if summary["tf_data_mode"] == "local":
        make, receive = max(rank - compute, 0.0), by_size
        notes.append(
            f"sending and receiving cost {TRANSFER_CPU_S_PER_GIB} CPU seconds a GiB each (make bench BENCH=transport)"
        )
        if not compute:
            notes.append("the model's own CPU time was not measured: all of the ranks' counts for preprocessing")
    else:
        workers_s = sum(host["cpu_s"].get("worker", 0.0) for host in hosts)
        make = max(scale * workers_s / (summary["steps"] * batch) - by_size, 0.0)
        notes.append("the workers' CPU time counts all that they made, batches of an evaluation too")
        if not compute:
            compute = max(rank - by_size, 0.0)
            notes.append("the cost of receiving was not measured: it is taken from a sample's bytes")
        receive = max(rank - compute, 0.0)
    ideal_s = summary["ideal_step_time_ms"] / 1000
    return Workload(batch, ideal_s, make, compute, sample_bytes, receive, by_size), notes


def _type(
    host: Mapping[str, Any], summary: Mapping[str, Any], table: InstanceTable, stands_for: str | None
) -> InstanceType | None:
    """What the dnn hosts are, or stand for; None for a simulated run of which nobody says so."""
    if not stands_for:
        return None if summary.get("simulated") else table.get(host["instance_type"])
    if not summary.get("simulated"):
        raise InputError(f"--as is for simulated runs; the hosts of {summary['job_name']} are what they are")
    found = table.get(stands_for)
    if found is None:
        raise InputError(f"--as {stands_for}: the table of instance types lacks it; give one with --prices")
    return found
