"""Choose this rank's part of its host: one GPU, and a share of the processors."""

from __future__ import annotations

import os

import tensorflow as tf

from headrace.errors import InputError

GPUS_OF_PROCESS = "CUDA_VISIBLE_DEVICES"
THREADS = "TF_NUM_INTRAOP_THREADS"


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
    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
    except RuntimeError:
        return  # TensorFlow has begun, with a thread for each processor
