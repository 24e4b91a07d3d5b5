"""Divide a host among its ranks. Each rank takes one GPU, and computes on an equal share of the processors."""

import contextlib
import os

import tensorflow as tf

from headrace.errors import InputError


def take_share(local_rank: int, local_size: int) -> None:
    """Take one GPU, allocate its memory only as needed, and compute on this rank's share of the processors.

    GPUs or threads that the script or its environment has already chosen stay as they are. Call this before the first
    tensor is made: a tensor starts TensorFlow's runtime, and nothing can be chosen afterwards.

    Raises:
        InputError: there are more ranks on this host than GPUs.
    """
    _take_gpu(local_rank, local_size)
    is_chosen = "TF_NUM_INTRAOP_THREADS" in os.environ or tf.config.threading.get_intra_op_parallelism_threads()
    if local_size > 1 and not is_chosen:  # threads that wait for files or other ranks are not limited
        with contextlib.suppress(RuntimeError):  # TensorFlow has begun, with a thread for each processor
            tf.config.threading.set_intra_op_parallelism_threads(max(len(os.sched_getaffinity(0)) // local_size, 1))


def _take_gpu(local_rank: int, local_size: int) -> None:
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus or tf.config.get_visible_devices("GPU") != gpus:
        return
    if len(gpus) < local_size:
        if os.environ.get("CUDA_VISIBLE_DEVICES"):
            return  # CUDA_VISIBLE_DEVICES gives each rank its own GPU, or lets ranks share one
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


def processors() -> int:
    """Return this rank's share of the host's processors, at least 1."""
    return max(len(os.sched_getaffinity(0)) // int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") or 1), 1)
