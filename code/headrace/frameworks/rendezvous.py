"""How PyTorch's ranks find each other: what torchrun puts into the environment, for ranks that mpirun has started."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping

from headrace.cluster.ports import free_ports

MASTER_VARIABLE = "HEADRACE_MASTER"
"""The leader's address, for ranks that torch.distributed connects."""
_OF_OTHERS = ("DistBackendError", "DistNetworkError")
_BROKEN = re.compile("gloo|NCCL|ncclRemoteError|Connection (closed|reset) by peer", re.IGNORECASE)
_OF_MPI = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "LOCAL_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
}


def is_wanted(environ: Mapping[str, str]) -> bool:
    """Whether this rank's script uses torch.distributed."""
    return bool(environ.get(MASTER_VARIABLE)) and all(name in environ for name in _OF_MPI.values())


def set_environ(environ: MutableMapping[str, str]) -> None:
    """Set what `torch.distributed.init_process_group` reads. All ranks must call it: rank 0 chooses the port."""
    from mpi4py import MPI

    for name, source in _OF_MPI.items():
        environ[name] = environ[source]
    port = free_ports(1)[0] if MPI.COMM_WORLD.rank == 0 else 0
    environ["MASTER_ADDR"] = environ[MASTER_VARIABLE]
    environ["MASTER_PORT"] = str(MPI.COMM_WORLD.bcast(port))
    share = len(os.sched_getaffinity(0)) // int(environ["LOCAL_WORLD_SIZE"])
    # Each rank would start as many threads as there are processors; torchrun leaves them one.
    environ.setdefault("OMP_NUM_THREADS", str(max(share, 1)))


def is_consequence(error: BaseException) -> bool:
    """Whether this is what a rank gets because another has ended: gloo and NCCL say that a connection broke."""
    return type(error).__name__ in _OF_OTHERS or (isinstance(error, RuntimeError) and bool(_BROKEN.search(str(error))))
