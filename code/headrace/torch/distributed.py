"""Functions that return this process's rank and device, and connect the ranks with torch.distributed.

`init` starts a thread that tells the launcher when this rank waits long in a collective, and when the wait ends. gloo
and NCCL do not report waits. The launcher needs the reports of all ranks: the rank at fault is the one not waiting.
"""

from __future__ import annotations

import datetime
import os
import sysconfig
import threading
import time
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

import headrace
from headrace.errors import InputError
from headrace.events import WAITS_FOR_RANKS, say
from headrace.job.settings import MASTER_VARIABLE, STALL_TIMEOUT_VARIABLE
from headrace.rank.liveness import innermost_frame

ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
"""Environment variables that torchrun sets for a job of one process."""
_RANK, _RANKS = "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"
LOOK_EVERY_S = 0.5
WAITING_SHARE = 0.2
"""Share of `stall_timeout_s` after which a rank reports that it waits in a collective."""
_COLLECTIVES = (os.path.join("torch", "distributed", ""), os.path.join("torch", "nn", "parallel", "distributed.py"))
_FOLDERS = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), os.path.dirname(headrace.__file__))
_LIBRARIES = (*(os.path.join(folder, "") for folder in _FOLDERS), "<")  # "<" begins names such as <string>
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_watched = False


def rank() -> int:
    """Return this process's rank; 0 without a launcher."""
    return dist.get_rank() if _is_up() else _number("RANK", 0)


def world_size() -> int:
    """Return the number of ranks; 1 without a launcher."""
    return dist.get_world_size() if _is_up() else _number("WORLD_SIZE", 1)


def local_rank() -> int:
    """Return this process's number among the ranks of its host."""
    return _number("LOCAL_RANK", 0)


def device() -> torch.device:
    """Return this rank's GPU, chosen by its local rank, or the CPU where there is no GPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", local_rank() % torch.cuda.device_count())


class Moments:
    """Points in time on a device. A GPU records each point in its queue, so Python does not wait for the GPU."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"

    def now(self) -> Any:
        """Return the present point in time, for `between_s`."""
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between_s(self, before: Any, after: Any) -> float:
        """Return the seconds from `before` to `after`. Waits until the GPU has come to `after`."""
        if not self._on_gpu:
            return float(after - before)
        after.synchronize()
        return float(before.elapsed_time(after)) / 1000


def init(backend: str = "") -> None:
    """Connect the ranks with `torch.distributed.init_process_group`. Does nothing if they are already connected.

    Without a launcher this process becomes rank 0 of 1, so DistributedDataParallel works there too. Raises `InputError`
    if the script has changed the ranks that the launcher set.

    Args:
        backend: name of a torch.distributed backend; by default `nccl` with GPUs, else `gloo`.
    """
    check_world()
    _watch_collectives()
    if _is_up():
        return
    own = device()
    if own.type == "cuda":
        torch.cuda.set_device(own)
    name = backend or ("nccl" if own.type == "cuda" else "gloo")
    gpus = torch.cuda.device_count()
    if own.type == "cuda" and "nccl" in name and local_rank() == 0 and _number("LOCAL_WORLD_SIZE", 1) > gpus:
        print(
            "warning: this host has more ranks than GPUs, but NCCL does not let ranks share a GPU. "
            f"Set --processes_per_host {gpus}, or share GPUs with headrace.torch.init('gloo')",
            flush=True,
        )
    # The launcher's watchdog names the rank that hangs after stall_timeout_s; torch's deadline is only a fallback.
    stall_timeout_s = os.environ.get(STALL_TIMEOUT_VARIABLE)
    limit = datetime.timedelta(seconds=2 * float(stall_timeout_s) + 60) if stall_timeout_s else None
    if "MASTER_ADDR" in os.environ:
        dist.init_process_group(name, timeout=limit)
    else:
        dist.init_process_group(name, store=dist.HashStore(), rank=0, world_size=1, timeout=limit)


def check_world() -> None:
    """Raise `InputError` if torch.distributed and the launcher disagree about the ranks. Without a launcher, return.

    Scripts written for SageMaker count each host in SM_HOSTS as a rank. But hosts of the data group do not train, and a
    host may have several ranks. Such a script would wait for ranks that never come, or take wrong parts of the data.
    """
    if not (os.environ.get(MASTER_VARIABLE) and _RANKS in os.environ) or _connects_to_nobody():
        return
    started, number = _number(_RANKS, 1), _number(_RANK, 0)
    ranks = dist.get_world_size() if _is_up() else _number("WORLD_SIZE", started)
    own = dist.get_rank() if _is_up() else _number("RANK", number)
    if (own, ranks) != (number, started):
        raise InputError(
            f"the script tells torch.distributed that this process is rank {own} of {ranks}, but the launcher started "
            f"it as rank {number} of {started}: hosts of the data group are not ranks, and a host may have several "
            "ranks. Call headrace.torch.init(), or init_process_group without rank and world_size, and keep the "
            "launcher's RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
        )


def store_of_ranks() -> Any:
    """Return the torch.distributed store that all ranks share; None if there is only one rank."""
    if not _is_up() or dist.get_world_size() == 1:
        return None
    return dist.distributed_c10d._get_default_store()


def from_rank_0(data: bytes) -> bytes:
    """Return rank 0's `data` on every rank. All ranks must call this."""
    if world_size() == 1:
        return data
    size = torch.tensor(len(data), device=device())
    dist.broadcast(size, 0)
    there = torch.empty(int(size), dtype=torch.uint8, device=device())
    if rank() == 0 and data:
        there.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    dist.broadcast(there, 0)
    return there.cpu().numpy().tobytes()


def place_in_script(frame: FrameType | None) -> str:
    """Return the innermost line of the script on a stack, such as `train.py:57`; empty if there is none."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_LIBRARIES) and not any(each in file for each in _INSTALLED):
            return f"{os.path.basename(file)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def is_collective(frame: FrameType) -> bool:
    """Return whether a frame is in torch.distributed or in a backward pass, where gradients are averaged."""
    code = frame.f_code
    return code.co_name == "_engine_run_backward" or any(each in code.co_filename for each in _COLLECTIVES)


def _watch_collectives() -> None:
    """If a launcher started several ranks, start a thread that reports when the caller waits in a collective."""
    global _watched
    limit_s = float(os.environ.get(STALL_TIMEOUT_VARIABLE) or 0) * WAITING_SHARE
    if limit_s and world_size() > 1 and not _watched:
        _watched = True
        arguments = (threading.get_ident(), rank(), limit_s)
        threading.Thread(target=_look_for_waiting, args=arguments, name="collectives", daemon=True).start()


def _look_for_waiting(thread: int, rank: int, limit_s: float) -> None:
    place, since, told = None, time.monotonic(), False
    while True:
        time.sleep(LOOK_EVERY_S)
        frame = innermost_frame(thread)
        if frame is None:
            return
        now_at = (frame.f_code, frame.f_lasti, frame.f_back and frame.f_back.f_lasti)
        if now_at != place:
            if told:
                say(WAITS_FOR_RANKS, rank=rank, over=1)
            place, since, told = now_at, time.monotonic(), False
        elif is_collective(frame) and time.monotonic() - since > limit_s:
            since, told = time.monotonic(), True  # report a long wait repeatedly: the launcher may have forgotten it
            say(WAITS_FOR_RANKS, rank=rank, at=place_in_script(frame))


def _connects_to_nobody() -> bool:
    """Return whether the script made this process the only rank, with a store that no other process can reach."""
    if not _is_up() or dist.get_world_size() > 1:
        return False
    store = dist.distributed_c10d._get_default_store()
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return isinstance(store, dist.HashStore)


def _is_up() -> bool:
    return dist.is_available() and dist.is_initialized()


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else default
