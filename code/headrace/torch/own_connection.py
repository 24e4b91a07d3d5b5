"""Refuses a script's own connection of the ranks that counts them otherwise than the launcher does.

Scripts written for SageMaker make a rank of each host in SM_HOSTS. Hosts of the data group do not train, and a host may
have several ranks, so such a connection would wait for ranks that never come.
"""

from __future__ import annotations

import functools
import inspect
import os
import socket
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from headrace.errors import InputError
from headrace.settings import MASTER_VARIABLE

RANK_OF_MPI, RANKS_OF_MPI = "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"
RANKS_OF_HOST = "OMPI_COMM_WORLD_LOCAL_SIZE"
_INSTEAD = (
    "leave rank and world_size out, and RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as the launcher has set them, or "
    "call headrace.torch.init()"
)


def look_after_connection() -> None:
    """From now on `torch.distributed.init_process_group` raises `InputError` there; does nothing without a launcher."""
    if dist.is_available() and os.environ.get(MASTER_VARIABLE) and RANKS_OF_MPI in os.environ:
        dist.init_process_group = _looking(dist.init_process_group)


def _looking(init_process_group: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(init_process_group)

    @functools.wraps(init_process_group)
    def init(*args: Any, **options: Any) -> None:
        given = signature.bind_partial(*args, **options).arguments
        if given.get("store") is None:
            by_environ = (given.get("init_method") or "env://") == "env://"
            _refuse_others("world_size", given, "WORLD_SIZE" if by_environ else "", RANKS_OF_MPI, "ranks")
            _refuse_others("rank", given, "RANK" if by_environ else "", RANK_OF_MPI, "as this one's number")
            if by_environ:
                _refuse_other_host()
        init_process_group(*args, **options)

    return init


def _refuse_others(argument: str, given: dict[str, Any], variable: str, of_mpi: str, what: str) -> None:
    said = given.get(argument, -1)
    if said is None or int(said) < 0:
        said = os.environ.get(variable) or os.environ[of_mpi]
    if str(said) != os.environ[of_mpi]:
        raise InputError(
            f"the script gives torch.distributed {said} {what}, and the launcher {os.environ[of_mpi]}: hosts of the "
            f"data group are no ranks, and a host may have several; {_INSTEAD}"
        )


def _refuse_other_host() -> None:
    said, launchers = os.environ.get("MASTER_ADDR", ""), os.environ[MASTER_VARIABLE]
    on_one_host = os.environ.get(RANKS_OF_HOST) == os.environ[RANKS_OF_MPI]
    if _address(said) != _address(launchers) and not (on_one_host and _address(said).startswith("127.")):
        raise InputError(
            f"the script gives torch.distributed MASTER_ADDR={said}, and rank 0 is on {launchers}; {_INSTEAD}"
        )


def _address(host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except OSError:
        return host
