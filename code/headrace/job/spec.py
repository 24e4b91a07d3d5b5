"""The specification of a job, which every backend runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.cluster.topology import DATA_GROUP, DNN_GROUP, HOMOGENEOUS_GROUP
from headrace.errors import InputError
from headrace.frameworks import DEFAULT
from headrace.job.mpi_options import split_mpi_options
from headrace.job.settings import LOCAL_WORKERS, Settings, parse_settings
from headrace.job.source import refuse_shadows, source_files

MAX_INSTANCES = 1000
"""Largest number of instances in a group. SageMaker allows more, but a larger number is probably a typing error."""
MAX_PROCESSES = 999
"""Largest number of workers, or of ranks, on a host. Worker ports begin at 6001 and must stay below 7001."""
LOCAL_PROCESSES_PER_HOST = 2
"""The default number of ranks of a simulated dnn host."""
DISTRIBUTIONS = ("launcher", "mpi")
"""What can start MPI on SageMaker: headrace's launcher (`launcher`), or SageMaker's training toolkit (`mpi`)."""
ISOLATIONS = ("auto", "namespaces", "loopback")
"""The ways to simulate hosts on one machine; auto: namespaces if the machine allows them, else loopback."""
_JOB_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
_CHANNEL_NAME = re.compile(r"[A-Za-z0-9.\-_]{1,64}")
_HYPERPARAMETER_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_\-]{0,255}")


@dataclass(frozen=True)
class InstanceGroup:
    """A group of hosts of the same instance type."""

    name: str
    instance_type: str
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MAX_INSTANCES:
            instead = "; for a job without data hosts give --no-is_hetero" if self.name == DATA_GROUP else ""
            raise InputError(f"{self.name} has {self.count} instances; a group has 1 to {MAX_INSTANCES}{instead}")


@dataclass(frozen=True)
class Channel:
    """Input data: its name, its location, and the groups that see it (all if none is named)."""

    name: str
    uri: str
    groups: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _CHANNEL_NAME.fullmatch(self.name) or not self.name.strip("."):
            raise InputError(f"channel name {self.name!r} must be 1 to 64 letters, digits, '.', '-' and '_'")
        if not self.uri:
            raise InputError(f"channel {self.name!r} has no location; write --channel {self.name}=URI")

    @classmethod
    def parse(cls, text: str) -> Channel:
        """Return the channel in `NAME=URI[@GROUP[,GROUP]]`."""
        name, separator, rest = text.partition("=")
        if not separator:
            raise InputError(f"channel {text!r} is not of the form NAME=URI[@GROUP[,GROUP]]")
        uri, at, groups = rest.rpartition("@")
        if not at or "/" in groups:  # this @ belongs to the location
            uri, groups = rest, ""
        return cls(name, uri, tuple(group for group in groups.split(",") if group))


@dataclass(frozen=True)
class JobSpec:
    """A training job: groups, data, hyperparameters, code. Validated when it is made."""

    job_name: str
    groups: tuple[InstanceGroup, ...]
    tf_data_mode: str
    processes_per_host: int
    num_of_data_workers: int = 1
    hyperparameters: Mapping[str, str] = field(default_factory=dict)
    channels: tuple[Channel, ...] = ()
    source_dir: Path = Path("code")
    training_script: str = "train_dnn.py"
    custom_mpi_options: str = ""
    """Further options for mpirun, as one text."""
    framework: str = DEFAULT.name
    left_out: tuple[Path, ...] = ()
    """Folders in the source dir, at any depth, that hosts do not get."""
    local_workers: str = "on"
    """`on`: the dnn hosts, which train, also make batches. `off`: only the data hosts make batches."""

    def __post_init__(self) -> None:
        if not _JOB_NAME.fullmatch(self.job_name):
            raise InputError(
                f"job name {self.job_name!r} must be 1 to 63 letters, digits and '-', starting with a letter or digit"
            )
        names = [group.name for group in self.groups]
        if self.is_hetero and self.tf_data_mode == "local":
            raise InputError("--tf_data_mode local leaves the data group idle; use service, or --no-is_hetero")
        if not 0 <= self.num_of_data_workers <= MAX_PROCESSES:
            raise InputError(f"--num_of_data_workers is {self.num_of_data_workers}; expected 0 to {MAX_PROCESSES}")
        if self.local_workers == "off" and not self.is_hetero:
            raise InputError("--local_workers off needs data hosts, which --no-is_hetero excludes: leave out one flag")
        if not 1 <= self.processes_per_host <= MAX_PROCESSES:
            raise InputError(f"--processes_per_host is {self.processes_per_host}; expected 1 to {MAX_PROCESSES}")
        reserved = sorted(set(self.hyperparameters) & {*self._own_hyperparameters(), "framework", "local_workers"})
        if reserved:
            raise InputError(f"hyperparameter {reserved[0]!r} is a setting of headrace; give --{reserved[0]} instead")
        Settings(**parse_settings([text for pair in self.all_hyperparameters().items() for text in as_flag(*pair)]))
        for name, value in self.hyperparameters.items():
            if not _HYPERPARAMETER_NAME.fullmatch(name):
                raise InputError(f"hyperparameter name {name!r} may hold letters, digits, '_' and '-' only")
            if name.startswith("sagemaker_"):
                raise InputError(
                    f"hyperparameter {name!r} would not reach the script: SageMaker reserves sagemaker_…; rename it"
                )
            if value == ":":
                raise InputError(
                    f"hyperparameter {name!r} is ':', which separates programs in mpirun's command: use another value"
                )
        split_mpi_options(self.custom_mpi_options)
        self._check_channels(names)
        self._check_source()

    def _check_channels(self, groups: list[str]) -> None:
        seen = set()
        for channel in self.channels:
            if channel.name in seen:
                raise InputError(f"channel {channel.name!r} is given twice; give it once")
            seen.add(channel.name)
            for group in channel.groups:
                if group not in groups:
                    raise InputError(
                        f"channel {channel.name!r} names group {group!r}; this job has {', '.join(groups)} "
                        "(if the location itself has an @, append the groups: NAME=URI@GROUP)"
                    )

    def _check_source(self) -> None:
        if not self.source_dir.is_dir():
            raise InputError(f"--source_dir {self.source_dir}: no such folder")
        script = self.source_dir / self.training_script
        if not script.is_file():
            wrong = (
                f"{script} is a folder" if script.is_dir() else f"--source_dir {self.source_dir} holds no {script.name}"
            )
            raise InputError(
                f"{wrong}; name a file with --training_script, or begin with `headrace new {self.source_dir}`"
            )
        theirs = source_files(self.source_dir, self.left_out)
        if Path(self.training_script) not in theirs:
            raise InputError(
                f"--training_script {self.training_script} would not reach the hosts: a .gitignore excludes it, or it "
                "is in a folder that hosts do not get (virtual environment, runs, channel, checkpoints). Move the file"
            )
        refuse_shadows(self.source_dir, theirs)

    @property
    def is_hetero(self) -> bool:
        return len(self.groups) > 1

    @property
    def dnn_group(self) -> InstanceGroup:
        return next(group for group in self.groups if group.name in (DNN_GROUP, HOMOGENEOUS_GROUP))

    def all_hyperparameters(self) -> dict[str, str]:
        """Return the hyperparameters that the launcher receives as `--name value`."""
        return {**self.hyperparameters, **self._own_hyperparameters()}

    def _own_hyperparameters(self) -> dict[str, str]:
        return {
            "tf_data_mode": self.tf_data_mode,
            "num_of_data_workers": str(self.num_of_data_workers),
            "processes_per_host": str(self.processes_per_host),
            "training_script": self.training_script,
            # Defaults are left out, so that most jobs' requests do not change with headrace's version.
            **({"local_workers": self.local_workers} if self.local_workers != LOCAL_WORKERS[0] else {}),
            **({"framework": self.framework} if self.framework != DEFAULT.name else {}),
        }

    def hosts(self) -> dict[str, InstanceGroup]:
        """Return each host's group, by SageMaker's host names `algo-1`, `algo-2`, …; the data group comes first."""
        ordered = sorted(self.groups, key=lambda group: group.name != DATA_GROUP)
        members = [group for group in ordered for _ in range(group.count)]
        return {f"algo-{number}": group for number, group in enumerate(members, 1)}


def as_flag(name: str, value: str) -> tuple[str, str]:
    """Return a hyperparameter as a flag and a value, as SageMaker's toolkit passes it to the entry script."""
    return f"--{name}" if len(name) > 1 else f"-{name}", value
