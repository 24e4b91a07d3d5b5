"""Options that only a Slurm job has, such as each group's resources and the time limit, with checks of their values."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import InputError

STOP_BEFORE_END_S = 120
"""Seconds from the stop request to the time limit, as on SageMaker. For a short job, a quarter of its time limit."""
WORDS = ("partition", "constraint", "gres", "cpus_per_task", "mem")
"""Fields of `GroupOptions` that become sbatch options `--NAME=VALUE`. The field `exclusive` becomes `--exclusive`."""
_ONE_LINE = re.compile(r"[^\s\0]+")
_TIME = re.compile(r"\d+|\d+:\d{1,2}(:\d{1,2})?|\d+-\d{1,2}(:\d{1,2}){0,2}")
_GPUS = re.compile(r"gpu(?::[A-Za-z][\w.-]*)?(?::(\d+))?")


@dataclass(frozen=True)
class GroupOptions:
    """Requirements for a group's nodes, as sbatch takes them."""

    partition: str = ""
    constraint: str = ""
    gres: str = ""
    cpus_per_task: int = 0
    mem: str = ""
    exclusive: bool = False

    def __post_init__(self) -> None:
        for name in ("partition", "constraint", "gres", "mem"):
            value = getattr(self, name)
            if value and not _ONE_LINE.fullmatch(value):
                raise InputError(f"--dnn_{name} or --data_{name} is {value!r}; expected one word, as sbatch takes it")
        if self.cpus_per_task < 0:
            raise InputError(f"--dnn_cpus or --data_cpus is {self.cpus_per_task}; expected 1 or more")

    @property
    def gpus(self) -> int:
        """Number of GPUs on each node, read from `gres`."""
        found = [match for part in self.gres.split(",") if (match := _GPUS.fullmatch(part))]
        return sum(int(match[1] or 1) for match in found)


@dataclass(frozen=True)
class SlurmOptions:
    """Where a job runs on Slurm, and its limits."""

    run: Path
    """The run's folder, on a file system that all nodes share."""
    python: str
    dnn: GroupOptions = field(default_factory=GroupOptions)
    data: GroupOptions = field(default_factory=GroupOptions)
    time: str = ""
    account: str = ""
    qos: str = ""
    requeue: bool = True

    def __post_init__(self) -> None:
        for name in ("account", "qos"):
            value = getattr(self, name)
            if value and not _ONE_LINE.fullmatch(value):
                raise InputError(f"--{name} is {value!r}; expected one word")
        if self.time and not _TIME.fullmatch(self.time):
            raise InputError(f"--time is {self.time!r}; expected minutes, H:MM:SS or D-HH:MM, as sbatch takes them")
        if re.search(r"[\s%\\\"']", str(self.run)):
            raise InputError(
                f"{self.run}: sbatch takes no spaces, quotes or % in file names; choose another --output_dir"
            )

    @property
    def stop_before_end_s(self) -> int:
        """The hosts are asked to stop this many seconds before the job's time limit."""
        days, dash, clock = self.time.rpartition("-")
        # Minutes, minutes:seconds or hours:minutes:seconds. After days and a dash, the first number is hours.
        parts = [int(part) for part in clock.split(":") if part]
        places = (3600, 60, 1) if dash or len(parts) == 3 else (60, 1)
        limit_s = int(days or 0) * 86_400 + sum(part * place for part, place in zip(parts, places, strict=False))
        return min(STOP_BEFORE_END_S, limit_s // 4) if limit_s else STOP_BEFORE_END_S


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that only `headrace submit --to slurm` has."""
    parser.set_defaults(dnn_instance_type="", data_instance_type="")
    group, yes_no = parser.add_argument_group("on Slurm only"), argparse.BooleanOptionalAction
    group.add_argument("--dry_run", action="store_true", help="print the batch script, submit nothing")
    group.add_argument("--wait", action=yes_no, default=True, help="follow the job and its logs to the end")
    for role, hosts in (("dnn", "hosts that train"), ("data", "data hosts")):
        group.add_argument(f"--{role}_partition", default="", metavar="NAME", help=f"for {hosts} (default: Slurm's)")
        group.add_argument(f"--{role}_constraint", default="", metavar="TEXT", help=f"node features for {hosts}")
        group.add_argument(f"--{role}_gres", default="", metavar="TEXT", help="resources of each node, such as gpu:8")
        group.add_argument(
            f"--{role}_cpus", dest=f"{role}_cpus_per_task", type=int, default=0, metavar="N", help="CPUs of each node"
        )
        group.add_argument(f"--{role}_mem", default="", metavar="SIZE", help="memory of each node, such as 64G; 0: all")
    group.add_argument("--exclusive", action="store_true", help="give the job whole nodes and the default ports")
    group.add_argument("--time", default="", metavar="LIMIT", help="minutes, H:MM:SS or D-HH:MM (default: partition's)")
    group.add_argument("--account", default="", metavar="NAME")
    group.add_argument("--qos", default="", metavar="NAME")
    group.add_argument(
        "--requeue", action=yes_no, default=True, help="after preemption, run again from the checkpoint (default)"
    )


def options_from(given: argparse.Namespace, run: Path, python: str) -> SlurmOptions:
    """Return the options that the flags describe. Raise `InputError` if they are not valid."""
    dnn, data = (
        GroupOptions(**{name: getattr(given, f"{role}_{name}") for name in WORDS}, exclusive=given.exclusive)
        for role in ("dnn", "data")
    )
    return SlurmOptions(run, python, dnn, data, given.time, given.account, given.qos, given.requeue)
