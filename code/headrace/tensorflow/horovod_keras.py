"""For Keras 3, the names that people know from `horovod.tensorflow.keras`.

Import it in its place: `import headrace.tensorflow.horovod_keras as hvd`. Horovod's own Keras
module does not work with Keras 3; its TensorFlow module does, and is what runs underneath.

This Horovod has no XLA operations, so models with a distributed optimizer are compiled with `jit_compile=False`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
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

from headrace.errors import InputError
from headrace.tensorflow import horovod_callbacks as callbacks
from headrace.tensorflow import progress, trained, world
from headrace.tensorflow.world import init

__all__ = [
    "Average",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Sum",
    "allgather",
    "allreduce",
    "average_metrics",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
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


def DistributedOptimizer(  # noqa: N802  (Horovod's name)
    optimizer: keras.optimizers.Optimizer | str,
    compression: Any = Compression.none,
    op: Any = Average,
) -> keras.optimizers.Optimizer:
    """`optimizer`, averaging the gradients of all ranks before it applies them. Starts Horovod if the script has not.

    It keeps its class name and configuration, so a model saved with it loads anywhere as a plain
    Keras model.

    Args:
        optimizer: a Keras 3 optimizer, or the name of one. It becomes a distributed one itself; of one that has been
            used already another is made, with its configuration and not its state.
        compression: `Compression.none` or `Compression.fp16`, for the gradients on the wire.
        op: `Average` (default) or `Sum`.
    """
    init()
    optimizer = keras.optimizers.get(optimizer)
    if _is_distributed(optimizer) and not optimizer.built:
        return optimizer
    distributed = _distributed_class(type(optimizer), compression, op)
    if optimizer.built:
        return distributed.from_config(optimizer.get_config())
    # Not every optimizer or schedule can be made again from its configuration, which does not have all of it either.
    optimizer.__class__ = distributed
    return optimizer


class DistributedGradientTape:
    """A `tf.GradientTape` whose gradients are averaged over all ranks; for loops of one's own.

    `with tf.GradientTape() as tape: …`, then `tape = hvd.DistributedGradientTape(tape)`, then `tape.gradient(…)`, as
    with Horovod's. All else is the tape's own.

    Args:
        gradtape: the tape that recorded, or will.
        compression: `Compression.none` or `Compression.fp16`, for the gradients on the wire.
        op: `Average` (default) or `Sum`.
    """

    def __init__(self, gradtape: tf.GradientTape, compression: Any = Compression.none, op: Any = Average) -> None:
        init()
        self._tape, self._compression, self._op = gradtape, compression, op

    def __enter__(self) -> DistributedGradientTape:
        self._tape.__enter__()
        return self

    def __exit__(self, *how: Any) -> None:
        self._tape.__exit__(*how)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    def gradient(self, target: Any, sources: Any, *args: Any, **options: Any) -> Any:
        """The gradients of all ranks, averaged; in the structure of `sources`."""
        gradients = self._tape.gradient(target, sources, *args, **options)
        flat = tf.nest.flatten(gradients, expand_composites=False)
        if world.size() > 1:
            trained.note(tf.nest.flatten(sources, expand_composites=False))
            flat = _reduce(flat, self._compression, self._op)
        return tf.nest.pack_sequence_as(gradients, flat, expand_composites=False)


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


def broadcast_variables(variables: Any, root_rank: int = 0) -> None:
    """Give every rank the values that these variables (Keras's or TensorFlow's) have on `root_rank`."""
    if world.size() > 1:
        _hvd.broadcast_variables([getattr(each, "value", each) if isinstance(each, keras.Variable) else each
                                  for each in variables], root_rank=root_rank)  # fmt: skip


def average_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Numbers of this rank, averaged over all ranks. Every rank must give the same names."""
    names = sorted(metrics)
    mine = tf.constant([float(metrics[name]) for name in names], tf.float64)
    means = _hvd.allreduce(mine, op=Average, name="headrace.metrics") if world.size() > 1 else mine
    return dict(zip(names, means.numpy().tolist(), strict=True))


def _adapt_compile() -> None:
    """Have `compile` see what a distributed optimizer needs: Horovod has no XLA operations."""
    # Keras asks whether a model's `compile` is its own, and loads no optimizer where it is not: so there, not below.
    owner = next(each for each in keras.Model.__mro__ if "compile" in vars(each))
    original = owner.compile
    if hasattr(original, "headrace"):
        return

    @functools.wraps(original)
    def compile_model(self: keras.Model, optimizer: Any = "rmsprop", *args: Any, **options: Any) -> None:
        inner = getattr(optimizer, "inner_optimizer", None)
        if _is_distributed(optimizer) or _is_distributed(inner):
            if options.get("jit_compile") is True:
                raise InputError("compile(jit_compile=True): Horovod has no XLA operations; write jit_compile=False")
            options["jit_compile"] = False
        original(self, optimizer, *args, **options)

    compile_model.headrace = True  # type: ignore[attr-defined]
    owner.compile = compile_model


def _adapt_loss_scaling() -> None:
    """Have the ranks decide together whether a step overflowed, on the gradients of all.

    Keras's LossScaleOptimizer, which mixed_float16 brings, decides before the optimizer within it averages: a rank that
    leaves a step out would have its next gradients averaged with the others' of this one. So the outer one averages.
    """
    scaling = keras.optimizers.LossScaleOptimizer
    original = scaling.__init__
    if hasattr(original, "headrace"):
        return

    @functools.wraps(original)
    def begin(self: keras.optimizers.Optimizer, inner_optimizer: Any, *args: Any, **options: Any) -> None:
        original(self, inner_optimizer, *args, **options)
        how = getattr(self.inner_optimizer, "headrace_reduction", None)
        if how and not _is_distributed(self):
            self.__class__ = _distributed_class(type(self), *how)

    begin.headrace = True  # type: ignore[attr-defined]
    scaling.__init__ = begin


def _is_distributed(optimizer: Any) -> bool:
    return hasattr(optimizer, "headrace_reduction")


_adapt_compile()
_adapt_loss_scaling()


_applying = threading.local()
"""`of_all_ranks`: the gradients that an optimizer within another one is given are reduced already."""


def _distributed_class(base: Any, compression: Any, op: Any) -> Any:
    class Distributed(base):  # type: ignore[misc, valid-type]
        headrace_reduction = (compression, op)

        def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
            if world.size() == 1 or getattr(_applying, "of_all_ranks", False):
                return super().apply(grads, trainable_variables)
            trained.note(self._trainable_variables if trainable_variables is None else trainable_variables, self)
            grads = _reduce(list(grads), compression, op)
            _applying.of_all_ranks = True
            try:
                return super().apply(grads, trainable_variables)
            finally:
                _applying.of_all_ranks = False

    # Saved models name the class that they load: the plain one.
    Distributed.__name__, Distributed.__qualname__ = base.__name__, base.__qualname__
    Distributed.__module__ = base.__module__
    return Distributed


def _reduce(grads: list[Any], compression: Any, op: Any) -> list[Any]:
    """All gradients reduced over the ranks in one group; missing ones stay missing."""
    progress.count_collective()
    present = [index for index, grad in enumerate(grads) if grad is not None]
    dense = [tf.convert_to_tensor(grads[index]) for index in present]
    for index, reduced in zip(present, _hvd.grouped_allreduce(dense, compression=compression, op=op), strict=True):
        grads[index] = reduced
    return grads
