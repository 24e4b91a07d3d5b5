"""Which rank this is, on which device, and torch.distributed among the ranks."""

from __future__ import annotations

import datetime
import os

import torch
import torch.distributed as dist

from headrace.errors import InputError
from headrace.settings import STALL_TIMEOUT_VARIABLE
from headrace.torch import waiting

ALONE = {
    "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
}  # fmt: skip
"""What torchrun tells the only process of a job."""
DEFAULT_TIMEOUT_S = 1800.0
"""torch's own, for collectives."""


def rank() -> int:
    """This process's number among all ranks; 0 without a launcher."""
    return dist.get_rank() if _is_up() else _number("RANK", 0)


def world_size() -> int:
    """How many ranks there are; 1 without a launcher."""
    return dist.get_world_size() if _is_up() else _number("WORLD_SIZE", 1)


def local_rank() -> int:
    """This process's number among its host's ranks."""
    return _number("LOCAL_RANK", 0)


def device() -> torch.device:
    """This rank's GPU, by its local rank; the CPU where there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", local_rank() % torch.cuda.device_count())


def init(backend: str = "") -> None:
    """Connect the ranks: `torch.distributed.init_process_group` with what the launcher says. Once is enough.

    Without a launcher the process is the only rank, so that DistributedDataParallel works there too.

    Args:
        backend: torch's name of one; by default NCCL where there are GPUs, else gloo.

    Raises:
        InputError: this torch lacks the backend.
    """
    if _is_up():
        return
    waiting.watch(rank(), world_size())
    own = device()
    if own.type == "cuda":
        torch.cuda.set_device(own)
    name = backend or ("nccl" if own.type == "cuda" else "gloo")
    if not all(dist.is_backend_available(part.rpartition(":")[2]) for part in name.split(",")):
        raise InputError(f"this torch is built without {name}; it has {', '.join(_backends())}")
    # The launcher's watchdog names who hangs after its stall_timeout_s; torch's own deadline is the second line.
    timeout_s = 2 * float(os.environ.get(STALL_TIMEOUT_VARIABLE) or DEFAULT_TIMEOUT_S / 2) + 60
    limit = datetime.timedelta(seconds=timeout_s)
    if "MASTER_ADDR" in os.environ:
        dist.init_process_group(name, timeout=limit)
    else:
        dist.init_process_group(name, store=dist.HashStore(), rank=0, world_size=1, timeout=limit)


def from_rank_0(data: bytes) -> bytes:
    """Rank 0's bytes, on every rank; all must call it."""
    if world_size() == 1:
        return data
    size = torch.tensor(len(data), device=device())
    dist.broadcast(size, 0)
    there = torch.empty(int(size), dtype=torch.uint8, device=device())
    if rank() == 0 and data:
        there.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    dist.broadcast(there, 0)
    return there.cpu().numpy().tobytes()


def _backends() -> list[str]:
    return [name for name in ("gloo", "nccl", "mpi", "ucc") if dist.is_backend_available(name)]


def _is_up() -> bool:
    return dist.is_available() and dist.is_initialized()


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else default
