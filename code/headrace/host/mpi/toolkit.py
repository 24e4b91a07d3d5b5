"""Run as a rank of the SageMaker toolkit's MPI: its mpirun starts the launcher once for each rank.

headrace starts no mpirun then. Local rank 0 of each dnn host supervises that host and runs its rank as a child; world
rank 0 leads. Every other rank executes the training script at once, and waits in MPI_Init for the leader's rank.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from headrace.cluster.topology import Topology
from headrace.errors import InputError
from headrace.host.host_plan import HostPlan, ToolkitRank
from headrace.host.mpi.mpirun import RANK_MODULE

_MPI_PREFIXES = ("OMPI_", "PMIX_", "ORTE_", "PMI_")


def toolkit_rank(environ: Mapping[str, str]) -> ToolkitRank | None:
    """Return the rank in Open MPI's variables, or None if mpirun did not start this launcher."""
    if "OMPI_COMM_WORLD_RANK" not in environ:
        return None
    return ToolkitRank(int(environ["OMPI_COMM_WORLD_RANK"]), int(environ["OMPI_COMM_WORLD_LOCAL_RANK"]))


def check_rank(rank: ToolkitRank, topology: Topology) -> None:
    """Check that rank 0 runs on the leader, where every host looks for it. Raises `InputError`."""
    if (rank.world == 0) != (rank.local == 0 and topology.is_leader):
        raise InputError(
            f"rank {rank.world} runs on {topology.current.name}, but {topology.source} has {topology.leader.name} as "
            "the first dnn host, which should have rank 0: leave MPI to headrace (--distribution launcher)"
        )


def without_mpi(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without MPI's variables, for servers, which must not believe that they are ranks."""
    return {name: value for name, value in environ.items() if not name.startswith(_MPI_PREFIXES)}


def rank_command(plan: HostPlan) -> list[str]:
    """Return the command that runs the training script as this rank."""
    script = str(plan.source_dir / plan.settings.training_script)
    return [sys.executable, "-u", "-m", RANK_MODULE, "-m", "mpi4py", script, *plan.script_arguments]


def become_rank(plan: HostPlan, environ: Mapping[str, str]) -> None:
    """Replace this process with its rank's training script."""
    sys.stdout.flush()
    sys.stderr.flush()
    command = rank_command(plan)
    # TMPDIR is in the host's work folder, which local rank 0 may not have made yet.
    os.execve(command[0], command, {name: value for name, value in environ.items() if name != "TMPDIR"})
