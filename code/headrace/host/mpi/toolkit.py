"""When the SageMaker toolkit starts MPI itself: it runs the launcher once a rank, all of them under its own mpirun.

Then there is no mpirun of ours. Local rank 0 of each dnn host supervises that host and runs its own rank as a
child; world rank 0 leads. Any other rank executes its training script at once. In MPI it waits for the leader's rank to
start.
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
    """The rank in Open MPI's variables; None when mpirun did not start this launcher.

    Raises:
        InputError: the variables are malformed.
    """
    world, local = environ.get("OMPI_COMM_WORLD_RANK"), environ.get("OMPI_COMM_WORLD_LOCAL_RANK")
    if world is None:
        return None
    if not world.isdecimal() or not (local or "").isdecimal():
        raise InputError(f"OMPI_COMM_WORLD_RANK={world!r}, OMPI_COMM_WORLD_LOCAL_RANK={local!r}: expected two numbers")
    return ToolkitRank(int(world), int(local or 0))


def check_rank(rank: ToolkitRank, topology: Topology) -> None:
    """Raises `InputError` when rank 0 is not where every host looks for the leader."""
    if (rank.world == 0) != (rank.local == 0 and topology.is_leader):
        raise InputError(
            f"rank {rank.world} runs on {topology.current.name}, but {topology.source} has {topology.leader.name} as "
            "the first dnn host, which should have rank 0: leave MPI to headrace (--distribution launcher)"
        )


def without_mpi(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for what is no rank: a server must not take itself for one."""
    return {name: value for name, value in environ.items() if not name.startswith(_MPI_PREFIXES)}


def rank_command(plan: HostPlan) -> list[str]:
    """The training script as this very rank."""
    script = str(plan.source_dir / plan.settings.training_script)
    return [sys.executable, "-u", "-m", RANK_MODULE, "-m", "mpi4py", script, *plan.script_arguments]


def become_rank(plan: HostPlan, environ: Mapping[str, str]) -> None:
    """Replace this process by its rank's training script."""
    sys.stdout.flush()
    sys.stderr.flush()
    command = rank_command(plan)
    # The host's working folder belongs to local rank 0, which may not have made it yet.
    os.execve(command[0], command, {name: value for name, value in environ.items() if name != "TMPDIR"})
