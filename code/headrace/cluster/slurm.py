"""Prepare a host of a Slurm job: make SageMaker's variables from Slurm's, and make the host's folders.

The batch script (`headrace.backends.slurm.batch_script`) sets HEADRACE_RUN and the HEADRACE_SLURM_… variables. On
a prepared host, the launcher and the training script find the same variables and folders as on SageMaker.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from headrace.cluster.addresses import (
    CONTROL_PORT,
    DISPATCHER_PORT,
    ENDPOINTS_VARIABLE,
    FIRST_WORKER_PORT,
    Endpoint,
    encode_endpoints,
)
from headrace.cluster.run_files import CHECKPOINTS, SUMMARY, WORK_DIR_VARIABLE, HostPaths
from headrace.cluster.topology import DATA_GROUP, DNN_GROUP, natural_key
from headrace.errors import InputError

RUN_VARIABLE = "HEADRACE_RUN"
"""Variable with the run's folder, which all hosts share. Only hosts of a Slurm job have it."""
GROUPS_VARIABLE = "HEADRACE_SLURM_GROUPS"
"""Variable with the instance group of each component of the Slurm job, in order: `dnn_group,data_group`."""
CHANNELS_VARIABLE = "HEADRACE_SLURM_CHANNELS"
"""Variable with the job's channels, one a line: `NAME=FOLDER@GROUP,GROUP`."""
PORTS_VARIABLE = "HEADRACE_SLURM_PORTS"
"""Variable with the number of consecutive ports that a job needs on shared nodes. Not set if nodes are exclusive."""
SECRET_VARIABLE = "HEADRACE_JOB_SECRET"
SECRET_FILE = "secret"
"""File in the run's folder with the job's secret. Only the file's owner may read it."""
FREE_PORTS = 800
"""Number of ports that the jobs on one node share. They are 6000 to 6799, below slurmctld's port 6817."""
LAUNCHER_PREFIXES = ("SLURM", "SBATCH_", "SRUN_", "PMI_", "PMI2_", "PMIX_", "OMPI_", "PRTE_", "I_MPI_")
"""Variables with these prefixes are removed. They can make mpirun use srun, or make MPI treat ranks as Slurm tasks."""


def enter_host(environ: Mapping[str, str]) -> dict[str, str]:
    """Prepare this host's folders; return the environment that SageMaker would give it, without Slurm's variables.

    Raises:
        InputError: Slurm's variables do not assign this host to a group, a folder cannot be made, or the job's secret
            file is missing or readable by other users.
    """
    run, groups = Path(environ[RUN_VARIABLE]), read_groups(environ)
    host = environ.get("SLURMD_NODENAME", "")
    own = next((group for group, hosts in groups.items() if host in hosts), None)
    if own is None:
        raise InputError(f"SLURMD_NODENAME is {host!r}, which is in no group of this job: {groups}")
    leader = (groups.get(DNN_GROUP) or groups[own])[0]
    job_id = environ.get("SLURM_JOB_ID", "0")
    offset = port_offset(int(job_id), int(environ.get(PORTS_VARIABLE) or 0))
    channels = dict(_visible_channels(environ.get(CHANNELS_VARIABLE, ""), own))
    paths = HostPaths(run / host)
    _prepare(run, paths, is_leader=host == leader)
    hosts = [each for members in groups.values() for each in members]
    shared = environ.get("SLURM_JOB_PARTITION", "")
    described: dict[str, dict[str, Any]] = {}
    for number, group in enumerate(_group_names(environ)):
        partition = environ.get(f"SLURM_JOB_PARTITION_HET_GROUP_{number}", shared)
        described[group] = {"instance_group_name": group, "instance_type": partition, "hosts": groups[group]}
    ports = FIRST_WORKER_PORT + offset, DISPATCHER_PORT + offset, CONTROL_PORT + offset
    temporary = environ.get("TMPDIR", "")
    local = Path(temporary if os.access(temporary, os.W_OK) else "/tmp")
    return {
        **{name: value for name, value in environ.items() if not name.startswith((*LAUNCHER_PREFIXES, "SM_"))},
        "SAGEMAKER_BASE_DIR": str(paths.base_dir),
        WORK_DIR_VARIABLE: str(local / f"headrace-{job_id}-{host}"),
        SECRET_VARIABLE: _secret(run / SECRET_FILE),
        ENDPOINTS_VARIABLE: encode_endpoints({each: Endpoint(each, "0.0.0.0", *ports) for each in hosts}),
        "TRAINING_JOB_NAME": environ.get("SLURM_JOB_NAME", run.name),
        "SM_HOSTS": json.dumps(sorted(hosts, key=natural_key)),
        "SM_CURRENT_HOST": host,
        "SM_CURRENT_INSTANCE_TYPE": described[own]["instance_type"],
        "SM_CURRENT_INSTANCE_GROUP": own,
        "SM_INSTANCE_GROUPS_DICT": json.dumps(described),
        "SM_NETWORK_INTERFACE_NAME": environ.get("SM_NETWORK_INTERFACE_NAME") or "eth0",
        "SM_NUM_CPUS": environ.get("SLURM_CPUS_ON_NODE") or str(os.cpu_count()),
        "SM_NUM_GPUS": environ.get("SLURM_GPUS_ON_NODE") or "0",
        "SM_MODEL_DIR": str(paths.model_dir),
        "SM_OUTPUT_DATA_DIR": str(paths.output_dir),
        "SM_CHANNELS": json.dumps(sorted(channels)),
        **{f"SM_CHANNEL_{name.upper()}": folder for name, folder in channels.items()},
    }


def read_groups(environ: Mapping[str, str]) -> dict[str, list[str]]:
    """Return host names by group, in natural order; the data group comes first.

    Raises:
        InputError: the job has more or fewer components than `GROUPS_VARIABLE` has groups, or a node list is missing.
    """
    names, groups = _group_names(environ), {}
    for number, group in enumerate(names):
        variable = f"SLURM_JOB_NODELIST_HET_GROUP_{number}" if len(names) > 1 else "SLURM_JOB_NODELIST"
        if not environ.get(variable):
            raise InputError(f"{GROUPS_VARIABLE} names {', '.join(names)}, but {variable} is not set")
        groups[group] = sorted(expand_hosts(environ[variable]), key=natural_key)
    components = int(environ.get("SLURM_HET_SIZE") or 1)
    if components != len(names):
        raise InputError(f"this job has {components} components, but {GROUPS_VARIABLE} names {', '.join(names)}")
    return dict(sorted(groups.items(), key=lambda pair: pair[0] != DATA_GROUP))


def expand_hosts(text: str) -> list[str]:
    """Expand Slurm's short form into host names: `gpu[01-03,7],login` gives gpu01, gpu02, gpu03, gpu7 and login."""
    names: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        pieces = re.findall(r"\[[^\]]*\]|[^\[]+", part)
        choices = [_numbers(piece[1:-1]) if piece.startswith("[") else [piece] for piece in pieces]
        names += ["".join(chosen) for chosen in itertools.product(*choices)]
    return names


def port_offset(job_id: int, needed: int) -> int:
    """Return the number to add to a job's ports, so that jobs with nearby job IDs can share a node.

    Args:
        needed: number of consecutive ports that the job needs on a node; 0 if the job is alone there.
    """
    return job_id % (FREE_PORTS // needed) * needed if needed else 0


def _group_names(environ: Mapping[str, str]) -> list[str]:
    return [name for name in environ.get(GROUPS_VARIABLE, "").split(",") if name]


def _numbers(text: str) -> list[str]:
    """Expand Slurm's short form into numbers: `01-03,7` gives 01, 02, 03 and 7."""
    found: list[str] = []
    for item in text.split(","):
        first, _, last = item.partition("-")
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last or first) + 1)]
    return found


def _visible_channels(text: str, group: str) -> Iterable[tuple[str, str]]:
    for line in filter(None, text.splitlines()):
        name, _, rest = line.partition("=")
        folder, _, groups = rest.rpartition("@")
        if not groups or group in groups.split(","):
            yield name, folder


def _prepare(run: Path, paths: HostPaths, is_leader: bool) -> None:
    """Make the host's folders. Its checkpoint folder, and the leader's output folder, link into the run's folder."""
    try:
        paths.output_dir.parent.mkdir(parents=True, exist_ok=True)
        paths.model_dir.mkdir(exist_ok=True)
        paths.failure.unlink(missing_ok=True)  # left from before the job was requeued
        _link(paths.checkpoint_dir, run / CHECKPOINTS)
        if is_leader:
            _link(paths.output_dir, run)
            (run / SUMMARY).unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"cannot prepare {paths.base_dir}, which all hosts must be able to write: {error}") from error


def _link(place: Path, target: Path) -> None:
    with contextlib.suppress(FileExistsError):
        place.symlink_to(target)


def _secret(path: Path) -> str:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        secret = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise InputError(f"cannot read the job's secret: {error}; submit again with `headrace submit`") from error
    if mode & 0o077:
        raise InputError(f"{path} is readable by other users: write a new secret into it, and chmod 600 it")
    return secret
