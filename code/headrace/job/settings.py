"""The launcher's settings on a host, read once at the start from hyperparameters and environment variables.

After that, the launcher uses only the frozen `Settings`. Ranks and servers get their values from environment variables.
`TrainerContext` reads some of these variables. The names of the others are constants of this module.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from headrace.cluster.addresses import ENDPOINTS_VARIABLE, Endpoint, read_endpoints
from headrace.errors import InputError
from headrace.frameworks import DEFAULT, FRAMEWORKS
from headrace.frameworks.horovod import WHEELS_VARIABLE as WHEELS_VARIABLE
from headrace.frameworks.pytorch_jobs import FEEDS_VARIABLE as FEEDS_VARIABLE
from headrace.frameworks.pytorch_jobs import MASTER_VARIABLE as MASTER_VARIABLE
from headrace.frameworks.pytorch_jobs import STALL_TIMEOUT_VARIABLE as STALL_TIMEOUT_VARIABLE
from headrace.job.mpi_options import split_mpi_options
from headrace.terminal.parser import OneLineParser

MOST_SECONDS = 1e9
"""Largest value of a setting in seconds: thirty years. A longer wait would overflow when given in nanoseconds."""
MIN_LEASE_S = 5.0
"""Shortest lease in seconds. It survives one slow renewal: renewals come every 1 to 2.5 s and time out after 3 s."""
TF_DATA_MODES = ("service", "local")
LOCAL_WORKERS = ("on", "off")
PREFLIGHTS = ("", "first", "only")
SECRET_VARIABLE = "HEADRACE_JOB_SECRET"
PLACEHOLDER_SECRET = "made-at-submission"
"""Secret that `--dry_run` prints; no job may have it."""
STARTUP_TIMEOUT_VARIABLE = "HEADRACE_STARTUP_TIMEOUT_S"
"""Variable with the seconds that ranks wait for hosts to start."""
TRUST_NETWORK_VARIABLE = "HEADRACE_TRUST_NETWORK"
"""Variable that is 1 if nobody else is on the hosts' network. Then MPI may use a secret made from the job's ARN."""
MPI_OPTIONS_VARIABLE = "HEADRACE_MPI_OPTIONS"
"""Variable with further options for mpirun, as one text."""
PREFLIGHT_VARIABLE = "HEADRACE_PREFLIGHT"
PREFLIGHT_TIMEOUT_VARIABLE = "HEADRACE_PREFLIGHT_TIMEOUT_S"
VERSION_VARIABLE = "HEADRACE_VERSION"
"""Variable with the version of headrace that submitted the job."""
MLFLOW_URI_VARIABLE, MLFLOW_EXPERIMENT_VARIABLE = "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"
"""MLflow's own variables. A job gets their values from the environment of the command that submits it."""
CONTROL_HOSTS_VARIABLE = "HEADRACE_CONTROL_HOSTS"
"""Variable with the addresses of the control channels: `name=address:port,…`."""
JOB_NAME_VARIABLES = ("TRAINING_JOB_NAME", "SM_TRAINING_JOB_NAME")


def _setting(default: Any, text: str, at_least: float | None = None, choices: Sequence[str] = ()) -> Any:
    """Return a field with a hyperparameter's description and range. A hyperparameter `…_s` takes seconds above 0."""
    return field(default=default, metadata={"text": text, "at_least": at_least, "choices": choices})


def _check(name: str, value: Any, text: str, at_least: float | None, choices: Sequence[str]) -> None:
    """Raise `InputError` if a value is outside its range."""
    if choices and value not in choices:
        raise InputError(f"{name} is {value!r}; expected one of {', '.join(filter(None, choices))} ({text})")
    if name.endswith("_s") and not 0 < value <= MOST_SECONDS:
        raise InputError(f"{name} is {value}; expected seconds above 0, up to 1e9 (1e9 switches the time limit off)")
    if at_least is not None and not at_least <= value:
        raise InputError(f"{name} is {value}; expected {at_least:g} or more ({text})")


def describe_settings(names: Sequence[str]) -> str:
    """Return a line for each setting: its name, its default, and its description."""
    known = {each.name: each for each in fields(Settings)}
    pairs = {name: f"{name}={known[name].default:g}" for name in names}
    return "\n".join(f"  {pair:<24} {known[name].metadata['text']}" for name, pair in pairs.items())


@dataclass(frozen=True)
class Settings:
    """The launcher's settings on this host. Times are in seconds."""

    tf_data_mode: str = _setting(
        "",
        "where batches are made; empty: service when the job is heterogeneous, else local",
        choices=("", *TF_DATA_MODES),
    )
    framework: str = _setting(
        DEFAULT.name, "framework of the training script, which also decides the data service", choices=tuple(FRAMEWORKS)
    )
    num_of_data_workers: int = _setting(1, "tf.data workers, or feed servers, per host", at_least=0)
    local_workers: str = _setting(
        "on", "`on`: dnn hosts run workers too, beside the trainer; `off`: only data hosts do", choices=LOCAL_WORKERS
    )
    processes_per_host: int = _setting(0, "ranks per dnn host; 0: one per GPU, or 1 without a GPU", at_least=0)
    training_script: str = _setting(DEFAULT.training_script, "script that the ranks run, a path inside the source dir")
    startup_timeout_s: float = _setting(
        900.0, "how long hosts wait for each other at the start (image pulls differ by minutes)"
    )
    lease_s: float = _setting(10.0, "a host that has not been reached for this long is lost", at_least=MIN_LEASE_S)
    grace_s: float = _setting(10.0, "how long children get between SIGTERM and SIGKILL")
    stop_grace_s: float = _setting(
        90.0, "how long a stop request may wait for a checkpoint (SageMaker kills 120 s after its SIGTERM)"
    )
    stall_timeout_s: float = _setting(600.0, "a trainer that makes no step for this long has hung")
    max_restarts: int = _setting(
        5, "how many times one dispatcher or worker may restart in quick succession before the job fails", at_least=0
    )
    min_data_hosts: int = _setting(1, "the job goes on after the loss of data hosts if this many are left", at_least=0)
    metrics_port: int = _setting(0, "port on which the leader serves OpenMetrics; 0: none", at_least=0)
    preflight: str = _setting(
        "", "`first`: the ranks test MPI before they train; `only`: they test it and do not train", choices=PREFLIGHTS
    )
    preflight_timeout_s: float = _setting(60.0, "preflight: how long a rank or network link may be silent in one stage")
    base_dir: Path = Path("/opt/ml")
    secret: str = field(default="", repr=False)
    secret_is_derived: bool = False
    """True if the secret comes from the job's ARN, which others know."""
    trust_network: bool = False
    """True if the user says that nobody else is on the hosts' network. MPI may then use a secret made from the ARN."""
    job_name: str = ""
    custom_mpi_options: tuple[str, ...] = ()
    """The user's options for mpirun, as words of its command line."""
    endpoints: Mapping[str, Endpoint] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for each in fields(self):
            if each.metadata:
                _check(each.name, getattr(self, each.name), **each.metadata)
        if self.metrics_port >= 1 << 16:
            raise InputError(f"metrics_port is {self.metrics_port}; expected 65535 or less")
        if self.local_workers == "off" and self.min_data_hosts < 1:
            raise InputError(
                "min_data_hosts is 0, but with local_workers off only data hosts make batches; give 1 or more"
            )
        if self.tf_data_mode == "service" and self.num_of_data_workers < 1:
            raise InputError("tf_data_mode service needs num_of_data_workers 1 or more")
        if Path(self.training_script).is_absolute() or ".." in Path(self.training_script).parts:
            raise InputError(f"training_script is {self.training_script!r}; expected a path inside the source dir")

    def endpoint(self, host: str) -> Endpoint:
        """Return the address and ports of `host`: its name and the usual ports, unless `endpoints` has others."""
        return self.endpoints.get(host) or Endpoint(host)


HYPERPARAMETERS = tuple(each.name for each in fields(Settings) if each.metadata)
"""Names of the settings that arrive as hyperparameters; the others come from the environment."""


def parse_settings(argv: Sequence[str]) -> dict[str, Any]:
    """Return the launcher's settings among `--name value` hyperparameters. The other ones belong to the script.

    Raises:
        InputError: a value has the wrong type, or the arguments are not pairs.
    """
    parser = OneLineParser(prog="launcher.py", add_help=False, argument_default=argparse.SUPPRESS)
    for each in fields(Settings):
        if each.metadata:
            parser.add_argument(f"--{each.name}", type=type(each.default))
    own = {f"--{name}" for name in HYPERPARAMETERS}
    return vars(parser.parse_args([f"{flag}={value}" for flag, value in pairs(argv) if flag in own]))


def pairs(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield `--name` and the value of each `--name value` or `--name=value`. The value itself may begin with a dash."""
    rest = iter(argv)
    for flag in rest:
        name, equals, value = flag.partition("=")
        found = value if equals else next(rest, None)
        if found is None or not name.startswith("-"):
            raise InputError(f"{flag!r} is not the beginning of a --NAME VALUE pair: give hyperparameters as pairs")
        yield name, found


def read_settings(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Read the settings from hyperparameters and the environment.

    Raises:
        InputError: a value is malformed or out of range.
    """
    return Settings(
        **parse_settings(argv),
        base_dir=read_base_dir(environ),
        secret=environ.get(SECRET_VARIABLE, ""),
        trust_network=environ.get(TRUST_NETWORK_VARIABLE, "") == "1",
        job_name=next((environ[name] for name in JOB_NAME_VARIABLES if environ.get(name)), ""),
        custom_mpi_options=split_mpi_options(environ.get(MPI_OPTIONS_VARIABLE, "")),
        endpoints=read_endpoints(environ.get(ENDPOINTS_VARIABLE, "")),
    )


def without_password(uri: str) -> str:
    """Return a URI without user name and password, for the log."""
    return re.sub(r"//[^/@]*@", "//", uri)


def default_mode(is_hetero: bool) -> str:
    """Return the default of tf_data_mode: service if there are data hosts, else local."""
    return "service" if is_hetero else "local"


def read_base_dir(environ: Mapping[str, str]) -> Path:
    """Return SageMaker's folder: the value of `SAGEMAKER_BASE_DIR`, else `/opt/ml`. The toolkit has the same rule."""
    return Path(environ.get("SAGEMAKER_BASE_DIR") or "/opt/ml")
