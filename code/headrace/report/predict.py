"""Predict the step time on other hosts, and what limits it, from the measurements of one run.

A step takes as long as the slowest of its concurrent parts: the model's arithmetic (the ideal step time), each group's
processors, and each group's network. If data hosts make the share x of a step's B samples, these parts take:

    trainer's processors   B · (compute + (1 − x) · (make + handover) + x · receive) ÷ (hosts · CPUs · utilization)
    data hosts' processors B · x · (make + send) ÷ (hosts · CPUs · utilization)
    data hosts' network    B · x · bytes ÷ (hosts · bytes/s)
    dnn hosts' network     B · (x + y) · bytes ÷ (hosts · bytes/s). If workers on n dnn hosts make batches, these hosts
                           also send batches to each other: y = (1 − x) · (n − 1) ÷ n, else y = 0

`compute`, `make`, `receive` and `send` are CPU seconds per sample. `handover` is `send` + `receive` if workers make
batches, else 0. If both groups make batches, each rank takes the batch that is ready first. Both groups then finish
together: this sets x. The tf.data papers use this model, without `receive`: the scarcest resource sets the rate.

On a host with one processor, an input pipeline in the trainer's process delays each step, even if the processor is not
fully used: `next` wakes the pipeline's threads, and the trainer waits until the scheduler lets it run again.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import Literal

from headrace.job.limited_by import ARITHMETIC

Placement = Literal["trainer", "data", "both"]
PLACEMENTS: tuple[Placement, ...] = ("trainer", "both", "data")
"""The hosts that may make batches: the dnn hosts alone, both groups, or the data hosts alone."""
UTILIZATION = 0.98
"""Share of a group's processors that a job can use if nothing else runs there; see `make bench BENCH=plan`."""
GIB = 2**30
TRANSFER_CPU_S_PER_GIB = 0.3
"""CPU seconds to send a GiB. Receiving a GiB takes just as many. See `make bench BENCH=transport`."""
SCHEDULER_TURN_S = 1.5e-3
"""Seconds that a thread may run before another gets its processor: Linux's minimum time slice with two processors."""
SHARES = 400
"""Precision of a chosen share: `predict` lets data hosts make 0, 1/SHARES, 2/SHARES, … or all of the samples."""


@dataclass(frozen=True)
class Workload:
    """Resources that a step needs, whichever hosts run it. A CPU second is one second of a measured host's vCPU."""

    batch: int
    """Number of samples in a step, summed over all ranks."""
    ideal_step_s: float
    """Seconds that a step takes if it never waits for data."""
    make_cpu_s: float
    """CPU seconds to make a sample."""
    compute_cpu_s: float = 0.0
    """CPU seconds for the model's own work on a sample, on the trainer's hosts."""
    sample_bytes: float = 0.0
    """Bytes of a sample on the network; 0 if not known: predictions then ignore the network."""
    receive_cpu_s: float = 0.0
    send_cpu_s: float = 0.0
    computing_limit: str = ARITHMETIC
    """What limits the speed of a step that does not wait for data."""


@dataclass(frozen=True)
class Group:
    """A group of equal hosts."""

    hosts: int
    cpus: float
    """Processors of each host."""
    bytes_per_s: float
    """Network rate of each host, in each direction."""


@dataclass(frozen=True)
class Prediction:
    """The predicted time of a step, and what limits it."""

    step_s: float
    limit: str


def predict(work: Workload, trainer: Group, data: Group, placement: Placement, has_service: bool = False) -> Prediction:
    """Predict a workload's step time on these hosts.

    Args:
        has_service: True if workers make the batches even without data hosts.
    """
    if placement == "trainer":
        return _with_share(work, trainer, data, 0.0, has_service)
    if placement == "data":
        return _with_share(work, trainer, data, 1.0, True)

    def step_s(number: int) -> float:
        return round(_with_share(work, trainer, data, number / SHARES, True).step_s, 9)

    # The step time is a maximum of linear functions of the share: as the share grows, it falls first, then rises.
    # Among equally fast shares, take the largest one, because workers on dnn hosts run at lower priority.
    fastest = bisect.bisect_left(range(1, SHARES + 1), True, key=lambda number: step_s(number) > step_s(number - 1))
    return _with_share(work, trainer, data, fastest / SHARES, True)


def _with_share(work: Workload, trainer: Group, data: Group, share: float, served: bool) -> Prediction:
    """Predict the step time if data hosts make `share` of the samples. `served`: workers, not ranks, make the rest."""
    handed_over = work.send_cpu_s + work.receive_cpu_s if served else 0.0
    on_trainer = {
        "the model's own CPU time": work.compute_cpu_s,
        "preprocessing on dnn hosts": (1 - share) * (work.make_cpu_s + handed_over),
        "receiving on dnn hosts": share * work.receive_cpu_s,
    }
    # Workers serve the ranks of all n dnn hosts, so (n − 1) ÷ n of what dnn hosts make goes to other dnn hosts.
    between_dnn_hosts = (1 - share) * (trainer.hosts - 1) / trainer.hosts if served else 0.0
    held_up_s = 0.0 if served or trainer.cpus > 1 else min(_busy_s(work.make_cpu_s, work, trainer), SCHEDULER_TURN_S)
    times = {
        work.computing_limit: work.ideal_step_s + held_up_s,
        max(on_trainer, key=lambda name: on_trainer[name]): _busy_s(sum(on_trainer.values()), work, trainer),
        "preprocessing on data hosts": _busy_s(share * (work.make_cpu_s + work.send_cpu_s), work, data),
        "network of dnn hosts": _network_s(share + between_dnn_hosts, work, trainer),
        "network of data hosts": _network_s(share, work, data),
    }
    limit = max(times, key=lambda name: times[name])
    return Prediction(times[limit], limit)


def _busy_s(cpu_s: float, work: Workload, group: Group) -> float:
    return cpu_s * work.batch / (group.hosts * group.cpus * UTILIZATION) if cpu_s else 0.0


def _network_s(share: float, work: Workload, group: Group) -> float:
    return work.batch * share * work.sample_bytes / (group.hosts * group.bytes_per_s) if share else 0.0
