"""The facts that a host knows before it starts processes, and the environment variables of those processes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.cluster.run_files import WORK_DIR_VARIABLE, HostPaths
from headrace.cluster.topology import Topology
from headrace.errors import InputError
from headrace.frameworks import FRAMEWORKS
from headrace.frameworks.framework import RankFacts
from headrace.host.mpi import mpirun
from headrace.host.usage.gpus import gpus_here
from headrace.job.settings import (
    CONTROL_HOSTS_VARIABLE,
    HYPERPARAMETERS,
    SECRET_VARIABLE,
    TRUST_NETWORK_VARIABLE,
    Settings,
)
from headrace.rank.context import TrainerContext

LONGEST_SOCKET_PATH, LONGEST_SOCKET_NAME = 107, 32
"""Two maxima in bytes: the path of a Unix socket (unix(7)), and the part that multiprocessing appends to TMPDIR."""


@dataclass(frozen=True)
class ToolkitRank:
    """The MPI rank of this launcher, if the SageMaker toolkit's mpirun started it."""

    world: int
    local: int
    """The rank's number among the ranks of its host. Local rank 0 supervises the host."""


@dataclass(frozen=True)
class HostPlan:
    """The facts that a host needs before it starts processes: topology, settings, script and environment."""

    topology: Topology
    settings: Settings
    source_dir: Path
    script_arguments: Sequence[str]
    """Arguments that the user gave the training script."""
    environ: Mapping[str, str]
    rank: ToolkitRank | None = None
    """Set when the SageMaker toolkit's mpirun started this launcher as one of its ranks."""

    @property
    def paths(self) -> HostPaths:
        return HostPaths(self.settings.base_dir, self.environ.get(WORK_DIR_VARIABLE, ""))

    @property
    def ranks_per_host(self) -> int:
        """Ranks on each dnn host: the user's number, else one for each GPU."""
        return self.settings.processes_per_host or int(self.environ.get("SM_NUM_GPUS") or 0) or gpus_here() or 1

    @property
    def world_size(self) -> int:
        """The number of ranks on all hosts."""
        return len(self.topology.dnn_hosts) * self.ranks_per_host

    @property
    def trainer_name(self) -> str:
        """Name of the process with which this host trains: `mpirun`, or `rankN` if the toolkit starts the ranks."""
        return f"rank{self.rank.world}" if self.rank else mpirun.MPIRUN

    @property
    def takes_mpi_daemon(self) -> bool:
        """True if the leader's mpirun may ask this host to start an MPI daemon."""
        topology = self.topology
        return topology.current.role == "dnn" and not topology.is_leader and self.rank is None

    def refuse_open_launch(self) -> None:
        """Raise `InputError` if anyone on the network could start programs on this job's hosts."""
        settings, several = self.settings, len(self.topology.dnn_hosts) > 1
        if several and self.rank is None and settings.secret_is_derived and not settings.trust_network:
            raise InputError(
                f"{SECRET_VARIABLE} is not set, so anyone "
                "who reaches these hosts and knows the job's ARN could start programs on them through MPI. Do one of "
                f"these: submit with start_job.py, set {SECRET_VARIABLE} to a random text in the job's environment, "
                f"use the toolkit's own MPI, or set {TRUST_NETWORK_VARIABLE}=1 if nobody else is on this network"
            )


def settings_environ(settings: Settings) -> dict[str, str]:
    """Return the launcher's settings as variables for training scripts: `HEADRACE_` and the setting's name."""
    values = {name: getattr(settings, name) for name in HYPERPARAMETERS}
    return {
        f"HEADRACE_{name.upper()}": f"{value:g}" if isinstance(value, float) else str(value)
        for name, value in values.items()
    }


def trainer_environ(plan: HostPlan, of_service: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of mpirun, MPI daemons and ranks on this host.

    Args:
        of_service: the variables by which ranks find the data service.
    """
    settings = plan.settings
    paths = plan.paths
    context = TrainerContext(
        job_name=settings.job_name or "headrace",
        output_dir=paths.output_dir,
        checkpoint_dir=paths.checkpoint_dir,
        signal_dir=paths.signal_dir,
    )
    channels = [f"{host.name}={settings.endpoint(host.name).control_address}" for host in plan.topology.hosts]
    facts = RankFacts(
        world_size=plan.world_size,
        leader_address=settings.endpoint(plan.topology.leader.name).address,
        stall_timeout_s=settings.stall_timeout_s,
        environ=plan.environ,
    )
    return {
        **plan.environ,
        **mpirun.network_environ(plan.topology, plan.environ),
        **python_environ(plan),
        **mpirun.mpi_environ(plan.source_dir, plan.environ),
        **settings_environ(settings),
        **context.environ(),
        **of_service,
        SECRET_VARIABLE: settings.secret,
        **FRAMEWORKS[settings.framework].rank_environ(facts),
        CONTROL_HOSTS_VARIABLE: ",".join(channels),
        # A preflight starts MPI before the framework is loaded, and both export hwloc's functions. By default, MPI
        # looks up some of these functions only when it ends. It would then call the framework's, and crash.
        **({"LD_BIND_NOW": "1"} if settings.preflight else {}),
    }


def python_environ(plan: HostPlan) -> dict[str, str]:
    """Return the variables that every Python child of this host gets."""
    of_framework = FRAMEWORKS[plan.settings.framework].process_environ(plan.environ)
    names = [host.name for host in plan.topology.hosts]
    direct = mpirun.without_proxy([*names, *(plan.settings.endpoint(name).address for name in names)], plan.environ)
    # A fixed seed makes what is built from sets, such as a vocabulary, the same in all processes of the job.
    given = plan.environ.get("PYTHONHASHSEED", "")
    hashes = {"PYTHONHASHSEED": given if given.isdecimal() else "0"}  # "random" would differ in each process
    # Readers expect the log in UTF-8, and no character is worth a crash.
    own = {"SM_CURRENT_HOST": plan.topology.current.name, "PYTHONIOENCODING": "utf-8:backslashreplace"}
    return {**own, **_temporary_files(plan), **hashes, **of_framework, **direct}


def _temporary_files(plan: HostPlan) -> dict[str, str]:
    """Return TMPDIR, set to the work folder. The launcher removes this folder even if a process that uses it is killed.

    The result is empty if the folder's path is too long for the sockets that a framework makes in TMPDIR.
    """
    folder = str(plan.paths.work_dir)
    too_long = len(os.fsencode(folder)) + LONGEST_SOCKET_NAME > LONGEST_SOCKET_PATH
    return {} if too_long and FRAMEWORKS[plan.settings.framework].has_sockets_in_tmpdir else {"TMPDIR": folder}
