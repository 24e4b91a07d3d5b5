"""Environment variables through which PyTorch's ranks find each other, as torchrun sets them, for mpirun's ranks."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping

from headrace.cluster.ports import free_ports

MASTER_VARIABLE = "HEADRACE_MASTER"
"""Variable with the leader's address, for ranks that torch.distributed connects."""
_OF_OTHERS = ("DistBackendError", "DistNetworkError")
_BROKEN = re.compile("gloo|NCCL|ncclRemoteError|Connection (closed|reset) by peer", re.IGNORECASE)
_OF_MPI = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "LOCAL_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
}


def is_wanted(environ: Mapping[str, str]) -> bool:
    """Return whether this rank's script uses torch.distributed."""
    return bool(environ.get(MASTER_VARIABLE)) and all(name in environ for name in _OF_MPI.values())


def set_environ(environ: MutableMapping[str, str]) -> None:
    """Set the variables that `init_process_group` reads. All ranks must call this, since rank 0 chooses the port."""
    from mpi4py import MPI

    for name, source in _OF_MPI.items():
        environ[name] = environ[source]
    port = free_ports(1)[0] if MPI.COMM_WORLD.rank == 0 else 0
    environ["MASTER_ADDR"] = environ[MASTER_VARIABLE]
    environ["MASTER_PORT"] = str(MPI.COMM_WORLD.bcast(port))
    share = len(os.sched_getaffinity(0)) // int(environ["LOCAL_WORLD_SIZE"])
    # By default each rank starts a thread for each processor. torchrun sets 1; this gives a rank its share.
    environ.setdefault("OMP_NUM_THREADS", str(max(share, 1)))


def is_consequence(error: BaseException) -> bool:
    """Return whether an error only says that another rank has ended: gloo or NCCL report a broken connection."""
    return type(error).__name__ in _OF_OTHERS or (isinstance(error, RuntimeError) and bool(_BROKEN.search(str(error))))
