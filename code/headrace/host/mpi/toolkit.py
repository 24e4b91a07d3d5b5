"""Run under the mpirun of SageMaker's toolkit, which starts the launcher once for each rank.

headrace starts no mpirun of its own. Local rank 0 of each dnn host supervises its host, and runs the training script
as a child. World rank 0 is also the leader. The other ranks execute the script at once; MPI_Init waits for all ranks.
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
    """Raise `InputError` unless rank 0 is the first rank of the first dnn host, where all hosts expect the leader."""
    if (rank.world == 0) != (rank.local == 0 and topology.is_leader):
        raise InputError(
            f"rank 0 must be the first rank on {topology.leader.name} (the first dnn host in {topology.source}), but "
            f"rank {rank.world} is on {topology.current.name}: let headrace start MPI (--distribution launcher)"
        )


def without_mpi(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without MPI's variables, so that servers started with it do not act as ranks."""
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
