"""What a host is told about how to run the job: hyperparameters and environment, read once, at the start.

After that, the launcher sees the frozen `Settings`. What ranks and servers need besides `TrainerContext` reaches them
in variables named here.
"""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from headrace.cluster.endpoints import ENDPOINTS_VARIABLE, Endpoint, read_endpoints
from headrace.cluster.paths import WORK_DIR_VARIABLE
from headrace.cluster.ports import is_own_port
from headrace.errors import InputError
from headrace.frameworks import DEFAULT, FRAMEWORKS
from headrace.frameworks.pytorch_jobs import FEEDS_VARIABLE as FEEDS_VARIABLE
from headrace.frameworks.pytorch_jobs import STALL_TIMEOUT_VARIABLE as STALL_TIMEOUT_VARIABLE
from headrace.frameworks.rendezvous import MASTER_VARIABLE as MASTER_VARIABLE
from headrace.frameworks.tensorflow_jobs import WHEELS_VARIABLE as WHEELS_VARIABLE

MOST_SECONDS = 1e9
"""Thirty years; what waits is told in whole nanoseconds, and more has no room there."""
MIN_LEASE_S = 5.0
"""A renewal every 1 to 2.5 s, with a call timeout of 3 s: less would take a slow reply for a death."""
TF_DATA_MODES = ("service", "local")
LOCAL_WORKERS = ("on", "off")
PREFLIGHTS = ("", "first", "only")
OWN_MPI_PARAMETERS = frozenset(
    {"plm_rsh_agent", "plm_rsh_no_tree_spawn", "orte_tmpdir_base", "btl_vader_backing_directory"}
)
"""Open MPI's parameters that users must leave alone."""
_REFUSED = dict.fromkeys(("--", "-V", "--version", "-h", "--help", "-?"), "mpirun would not run the script")
_REFUSED |= dict.fromkeys(("-n", "--n", "-np", "--np", "-c"), "say --processes_per_host")
"""Words of mpirun's, and why they cannot be among the user's."""

SECRET_VARIABLE = "HEADRACE_JOB_SECRET"
PLACEHOLDER_SECRET = "made-at-submission"
"""What `--dry_run` prints for it; no job may have it."""
STARTUP_TIMEOUT_VARIABLE = "HEADRACE_STARTUP_TIMEOUT_S"
"""For ranks that wait for hosts which are not there yet."""
TRUST_NETWORK_VARIABLE = "HEADRACE_TRUST_NETWORK"
"""1: nobody but the job's hosts reaches them, so that a derived secret will do for MPI too."""
MPI_OPTIONS_VARIABLE = "HEADRACE_MPI_OPTIONS"
"""Further options for mpirun, as one text."""
PREFLIGHT_VARIABLE = "HEADRACE_PREFLIGHT"
PREFLIGHT_TIMEOUT_VARIABLE = "HEADRACE_PREFLIGHT_TIMEOUT_S"
VERSION_VARIABLE = "HEADRACE_VERSION"
"""Of the headrace that the job was submitted with."""
MLFLOW_URI_VARIABLE, MLFLOW_EXPERIMENT_VARIABLE = "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"
"""MLflow's own; jobs get them from who submits."""
HOST_NAMES_VARIABLE = "HEADRACE_HOST_NAMES"
"""Host names by address, as `address=name,…`: mpirun knows addresses, the control channel names."""
CONTROL_HOSTS_VARIABLE = "HEADRACE_CONTROL_HOSTS"
"""How the control channels are reached: `name=address:port,…`."""
JOB_NAME_VARIABLES = ("TRAINING_JOB_NAME", "SM_TRAINING_JOB_NAME")


@dataclass(frozen=True)
class Settings:
    """How this host runs its part of the job. Times are seconds."""

    tf_data_mode: str = ""
    """`service`, `local`, or empty: service when the job is heterogeneous, else local."""
    framework: str = DEFAULT.name
    """What the training script uses; with it, which data service there is."""
    num_of_data_workers: int = 1
    """tf.data workers, or feed servers, per host."""
    local_workers: str = "on"
    """`on`: dnn hosts have them too, beside the trainer; `off`: data hosts alone."""
    processes_per_host: int = 0
    """Ranks per dnn host; 0: the host's GPUs, one when it has none."""
    training_script: str = "train_dnn.py"
    startup_timeout_s: float = 900.0
    """How long hosts wait for each other at the start (image pulls differ by minutes)."""
    lease_s: float = 10.0
    """A host that has not been reached for this long is lost."""
    grace_s: float = 10.0
    """How long children get between SIGTERM and SIGKILL."""
    stop_grace_s: float = 90.0
    """How long a stop request may wait for a checkpoint (SageMaker kills 120 s after its SIGTERM)."""
    stall_timeout_s: float = 600.0
    """A trainer that makes no step for this long has hung."""
    max_restarts: int = 5
    """Restarts of one dispatcher or worker, in quick succession, before the job fails."""
    min_data_hosts: int = 1
    """The job goes on without lost data hosts while this many remain."""
    metrics_port: int = 0
    """Where the leader serves OpenMetrics; 0: nowhere."""
    preflight: str = ""
    """`first`: the ranks try MPI before they train; `only`: they do nothing else."""
    preflight_timeout_s: float = 60.0
    """How long a rank or a link may give no sign in one stage of the preflight."""
    base_dir: Path = Path("/opt/ml")
    work_dir: Path | None = None
    secret: str = field(default="", repr=False)
    secret_is_derived: bool = False
    """From the job's ARN, which others know."""
    trust_network: bool = False
    """Go on where a derived secret is all that keeps others from starting programs here."""
    job_name: str = ""
    custom_mpi_options: tuple[str, ...] = ()
    """Further words of mpirun's command line."""
    endpoints: Mapping[str, Endpoint] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.tf_data_mode and self.tf_data_mode not in TF_DATA_MODES:
            raise InputError(f"tf_data_mode is {self.tf_data_mode!r}; expected one of {', '.join(TF_DATA_MODES)}")
        if self.framework not in FRAMEWORKS:
            raise InputError(f"framework is {self.framework!r}; expected one of {', '.join(FRAMEWORKS)}")
        if self.local_workers not in LOCAL_WORKERS:
            raise InputError(f"local_workers is {self.local_workers!r}; expected one of {', '.join(LOCAL_WORKERS)}")
        if self.preflight not in PREFLIGHTS:
            raise InputError(f"preflight is {self.preflight!r}; expected first, only or nothing")
        for name in ("num_of_data_workers", "processes_per_host", "max_restarts", "min_data_hosts"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} is {getattr(self, name)}; expected 0 or more")
        if not 0 <= self.metrics_port < 1 << 16 or is_own_port(self.metrics_port, self.num_of_data_workers):
            raise InputError(f"metrics_port is {self.metrics_port}; expected a port that no server of the job has")
        for name in (each.name for each in fields(self) if each.name.endswith("_s")):
            value = getattr(self, name)
            if not 0 < value <= MOST_SECONDS:
                raise InputError(f"{name} is {value}; expected seconds above 0 (1e9 switches it off)")
        if self.lease_s < MIN_LEASE_S:
            raise InputError(f"lease_s is {self.lease_s}; expected {MIN_LEASE_S:g} or more: renewals take seconds")
        if self.local_workers == "off" and self.min_data_hosts < 1:
            raise InputError(
                "min_data_hosts is 0, but with local_workers off nobody else makes batches; give 1 or more"
            )
        if self.tf_data_mode == "service" and self.num_of_data_workers < 1:
            raise InputError("tf_data_mode service needs num_of_data_workers 1 or more")
        if Path(self.training_script).is_absolute() or ".." in Path(self.training_script).parts:
            raise InputError(f"training_script is {self.training_script!r}; expected a path inside the source dir")

    def endpoint(self, host: str) -> Endpoint:
        """Where `host` is reached: by its name, unless the environment says otherwise."""
        return self.endpoints.get(host) or Endpoint(host)


_DEFAULTS = Settings()
HYPERPARAMETERS = tuple(f.name for f in fields(Settings))[: [f.name for f in fields(Settings)].index("base_dir")]
"""The settings that arrive as hyperparameters; the rest comes from the environment."""


class OneLineParser(argparse.ArgumentParser):
    """An argument parser whose errors are one line and raise `InputError` (exit 2)."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> Any:
        meant = ""
        if unknown := re.search(r"unrecognized arguments: (--[^\s=]+)", message):
            known = [option for action in self._actions for option in action.option_strings]
            close = difflib.get_close_matches(unknown[1], known, 1)
            meant = f"; did you mean {close[0]}?" if close else ""
        raise InputError(f"{message}{meant}; see {self.prog} --help")


def parse_settings(argv: Sequence[str]) -> dict[str, Any]:
    """The launcher's own settings among hyperparameters, as `--name value`; the rest is the script's.

    Raises:
        InputError: a value is of the wrong type, or the arguments are no such pairs.
    """
    parser = OneLineParser(prog="launcher.py", add_help=False, argument_default=argparse.SUPPRESS)
    for name in HYPERPARAMETERS:
        parser.add_argument(f"--{name}", type=type(getattr(_DEFAULTS, name)))
    own = {f"--{name}" for name in HYPERPARAMETERS}
    return vars(parser.parse_args([f"{flag}={value}" for flag, value in pairs(argv) if flag in own]))


def pairs(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The pairs in `--name value` or `--name=value`. A value may look like a flag: a text that begins with a dash."""
    rest = iter(argv)
    for flag in rest:
        name, equals, value = flag.partition("=")
        found = value if equals else next(rest, None)
        if found is None or not name.startswith("-"):
            raise InputError(f"{flag!r} is not the beginning of a --NAME VALUE pair, as which hyperparameters come")
        yield name, found


def read_settings(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Settings from hyperparameters and the environment.

    Raises:
        InputError: a value is malformed or out of range.
    """
    return Settings(
        **parse_settings(argv),
        base_dir=read_base_dir(environ),
        work_dir=Path(environ[WORK_DIR_VARIABLE]) if environ.get(WORK_DIR_VARIABLE) else None,
        secret=environ.get(SECRET_VARIABLE, ""),
        trust_network=environ.get(TRUST_NETWORK_VARIABLE, "") == "1",
        job_name=next((environ[name] for name in JOB_NAME_VARIABLES if environ.get(name)), ""),
        custom_mpi_options=split_mpi_options(environ.get(MPI_OPTIONS_VARIABLE, "")),
        endpoints=read_endpoints(environ.get(ENDPOINTS_VARIABLE, "")),
    )


def without_password(uri: str) -> str:
    """A URI for the log: without a name and a password."""
    return re.sub(r"//[^/@]*@", "//", uri)


def default_mode(is_hetero: bool) -> str:
    """Where batches are made when nobody says: on data hosts, if there are any."""
    return "service" if is_hetero else "local"


def split_mpi_options(text: str) -> tuple[str, ...]:
    """The words of `--custom_mpi_options`; `--NCCL_DEBUG LEVEL` is the toolkit's way to say `-x NCCL_DEBUG=LEVEL`.

    Raises:
        InputError: quotes are not closed, the first word is no option, a parameter is the launcher's own, or mpirun
            would not run the script.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(f"--custom_mpi_options {text!r}: {error}") from error
    if words and not words[0].startswith("-"):
        raise InputError(f"--custom_mpi_options {text!r}: {words[0]!r} is no option")
    if taken := sorted(set(words) & OWN_MPI_PARAMETERS):
        raise InputError(f"--custom_mpi_options {text!r}: {taken[0]} is how headrace's launcher reaches the hosts")
    for word in filter(_REFUSED.get, words):
        raise InputError(f"--custom_mpi_options {text!r}: {word!r}: {_REFUSED[word]}")
    words = [part for word in words for part in (word.split("=", 1) if word.startswith("--NCCL_DEBUG=") else [word])]
    while "--NCCL_DEBUG" in words:
        place = words.index("--NCCL_DEBUG")
        words[place : place + 2] = ["-x", f"NCCL_DEBUG={''.join(words[place + 1 : place + 2]) or 'INFO'}"]
    return tuple(words)


def read_base_dir(environ: Mapping[str, str]) -> Path:
    """SageMaker's folder: `/opt/ml`, or what `SAGEMAKER_BASE_DIR` says, as the toolkit reads it."""
    return Path(environ.get("SAGEMAKER_BASE_DIR") or "/opt/ml")


def find_source_dir(entry: str) -> Path:
    """The source dir: the folder of the entry script, which SageMaker unpacks to `/opt/ml/code`."""
    return Path(entry).resolve().parent
