"""Keras 3 optimizers that average the gradients of all ranks, and what Keras must know of them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from typing import Any

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from headrace.errors import InputError
from headrace.tensorflow.keras import progress_counts
from headrace.tensorflow.ranks import collectives

_HOW_HOROVOD_SENDS = {"name", "device_dense", "device_sparse", "num_groups", "groups",
                      "average_aggregated_gradients", "gradient_predivide_factor"}  # fmt: skip
"""Arguments of Horovod's that change no result: here all dense gradients go in one group."""
_INSTEAD = {
    "backward_passes_per_step": (1, "give the Keras optimizer gradient_accumulation_steps"),
    "process_set": (hvd.global_process_set, "all ranks train one model"),
}
"""Those that would: their defaults, and what there is in their place."""


def check_options(op: Any, options: Mapping[str, Any]) -> None:
    """Horovod's further arguments of an optimizer or a tape. Raises `InputError`, or `TypeError` as Python does."""
    if op not in (hvd.Average, hvd.Sum):
        raise InputError("op is hvd.Average or hvd.Sum: headrace offers no other reduction of gradients")
    for name, value in options.items():
        if name in _INSTEAD:
            default, instead = _INSTEAD[name]
            if value != default:
                raise InputError(f"{name}={value!r} is not offered: {instead}")
        elif name not in _HOW_HOROVOD_SENDS:
            raise TypeError(f"an unexpected argument {name!r}; there are compression and op")


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
        if is_distributed(optimizer) or is_distributed(inner):
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
        if how and not is_distributed(self):
            self.__class__ = distributed_class(type(self), *how)

    begin.headrace = True  # type: ignore[attr-defined]
    scaling.__init__ = begin


def is_distributed(optimizer: Any) -> bool:
    return hasattr(optimizer, "headrace_reduction")


_adapt_compile()
_adapt_loss_scaling()


_applying = threading.local()
"""`of_all_ranks`: the gradients that an optimizer within another one is given are reduced already."""


def distributed_class(base: Any, compression: Any, op: Any, sparse_as_dense: bool) -> Any:
    class Distributed(base):  # type: ignore[misc, valid-type]
        headrace_reduction = (compression, op, sparse_as_dense)

        def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
            if collectives.size() == 1 or getattr(_applying, "of_all_ranks", False):
                return super().apply(grads, trainable_variables)
            grads = reduce_gradients(list(grads), compression, op, sparse_as_dense)
            _applying.of_all_ranks = True
            try:
                return super().apply(grads, trainable_variables)
            finally:
                _applying.of_all_ranks = False

    # Saved models name the class that they load: the plain one.
    Distributed.__name__, Distributed.__qualname__ = base.__name__, base.__qualname__
    Distributed.__module__ = base.__module__
    return Distributed


def reduce_gradients(grads: list[Any], compression: Any, op: Any, sparse_as_dense: bool) -> list[Any]:
    """Reduce gradients over the ranks, dense ones in one group, sparse ones by allgather. Missing ones stay missing."""
    progress_counts.count_collective()
    dense = []
    for index, grad in enumerate(grads):
        if isinstance(grad, tf.IndexedSlices) and not sparse_as_dense:
            grads[index] = _each_row_once(hvd.allreduce(_each_row_once(grad), op=op))
        elif grad is not None:
            dense.append(index)
    tensors = [tf.convert_to_tensor(grads[index]) for index in dense]
    for index, reduced in zip(dense, hvd.grouped_allreduce(tensors, compression=compression, op=op), strict=True):
        grads[index] = reduced
    return grads


def _each_row_once(grad: tf.IndexedSlices) -> tf.IndexedSlices:
    """The same gradient, with each row's parts added up: Keras's optimizers square each part by itself."""
    rows, places = tf.unique(grad.indices)
    return tf.IndexedSlices(tf.math.unsorted_segment_sum(grad.values, places, tf.size(rows)), rows, grad.dense_shape)
