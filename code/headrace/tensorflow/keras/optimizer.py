"""Keras 3 optimizers that average the gradients of all ranks."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from typing import Any

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from headrace.errors import InputError
from headrace.tensorflow.keras import rank_meter
from headrace.tensorflow.ranks import collectives

_HOW_HOROVOD_SENDS = {
    "name",
    "device_dense",
    "device_sparse",
    "average_aggregated_gradients",
    "gradient_predivide_factor",
}
"""Arguments of Horovod's optimizer that are accepted and ignored, since they change no result."""
_INSTEAD = {
    "backward_passes_per_step": (1, "set the Keras optimizer's argument gradient_accumulation_steps"),
    "process_set": (hvd.global_process_set, "leave it out, since all ranks train one model"),
}
"""Arguments of Horovod's optimizer that would change results, each with its default and what to do instead."""
AROUND = (
    "a LossScaleOptimizer around hvd.DistributedOptimizer(…) would let the ranks skip different steps: write "
    "hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(…)). If compile() has added the LossScaleOptimizer, "
    "pass hvd.callbacks.BroadcastGlobalVariablesCallback(0) to fit() instead"
)
_applying = threading.local()
"""State of each thread. `reduced`: the gradients are averaged, so an inner optimizer must not average again."""
_told: list[str] = []


class Reduction:
    """A way to combine the gradients of all ranks.

    Args:
        compression: `Compression.none` or `Compression.fp16`, for the gradients on the wire.
        op: `Average` (default) or `Sum`.
        sparse_as_dense: send sparse gradients, such as `Embedding`'s, as whole tables: faster if steps read most rows.
        num_groups: number of groups of dense gradients; each is sent as soon as it is complete. 0 means one group.
        groups: Horovod's other name for `num_groups`.
        horovods: further arguments of Horovod's optimizer; those that would change the result are refused.

    Raises:
        InputError: headrace does not offer an argument.
    """

    def __init__(
        self,
        compression: Any = hvd.Compression.none,
        op: Any = hvd.Average,
        sparse_as_dense: bool = False,
        num_groups: int = 0,
        groups: Any = None,
        **horovods: Any,
    ) -> None:
        _check(op, horovods)
        self._compression, self._op, self._sparse_as_dense = compression, op, sparse_as_dense
        self._num_groups = groups if isinstance(groups, int) else num_groups

    def gradients(self, grads: list[Any]) -> list[Any]:
        """Reduce gradients over the ranks: dense ones in groups, sparse ones by allgather. A None stays None."""
        if collectives.size() == 1:
            return grads
        rank_meter.count_collective()
        dense = []
        for index, grad in enumerate(grads):
            if isinstance(grad, tf.IndexedSlices) and not self._sparse_as_dense:
                grads[index] = _each_row_once(hvd.allreduce(_each_row_once(grad), op=self._op))
            elif grad is not None:
                dense.append(index)
        size = -(-len(dense) // max(self._num_groups, 1))
        for group in (dense[begin : begin + size] for begin in range(0, len(dense), size)):
            tensors = [tf.convert_to_tensor(grads[index]) for index in group]
            reduced = hvd.grouped_allreduce(tensors, compression=self._compression, op=self._op)
            for index, each in zip(group, reduced, strict=True):
                grads[index] = each
        return grads


def _check(op: Any, options: Mapping[str, Any]) -> None:
    """Raise `InputError` for arguments that would change a result, and `TypeError` for those that Horovod lacks."""
    if op not in (hvd.Average, hvd.Sum):
        raise InputError("op must be hvd.Average or hvd.Sum: headrace offers no other reduction of gradients")
    for name, value in options.items():
        if name in _INSTEAD:
            default, instead = _INSTEAD[name]
            if value != default:
                raise InputError(f"{name}={value!r} is not offered: {instead}")
        elif name not in _HOW_HOROVOD_SENDS:
            raise TypeError(f"an unexpected argument {name!r}; expected compression or op")


def optimizers_of(model: keras.Model) -> list[Any]:
    """Return all optimizers of a model: the compiled one, and those in its attributes (as in a GAN)."""
    held = [each for name, each in vars(model).items() if not name.startswith("_")]
    within = (
        each.values() if isinstance(each, dict) else each for each in held if isinstance(each, dict | list | tuple)
    )
    found = [getattr(model, "optimizer", None), *held, *itertools.chain.from_iterable(within)]
    return list({id(each): each for each in found if isinstance(each, keras.optimizers.Optimizer)}.values())


def is_distributed(optimizer: Any) -> bool:
    return hasattr(optimizer, "headrace_reduction")


def _is_reduced() -> bool:
    return bool(getattr(_applying, "reduced", False))


def distributed_class(base: Any, how: Reduction) -> Any:
    """Return a subclass of the optimizer class `base` that applies the combined gradients of all ranks."""

    class Distributed(base):  # type: ignore[misc, valid-type]
        headrace_reduction = how

        def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
            grads = list(grads)
            variables = None if trainable_variables is None else list(trainable_variables)
            if not grads or _is_reduced():
                return super().apply(grads, variables)
            if collectives.size() > 1 and getattr(self, "headrace_scaled", False):
                raise InputError(AROUND)
            if variables and not self.built:  # as Keras does, but outside the control dependencies below
                with keras.name_scope(self.name, caller=self):
                    self.build(variables)
            if not self.gradient_accumulation_steps:
                grads = how.gradients(grads)
            _applying.reduced = not self.gradient_accumulation_steps
            try:
                # Without this dependency, TensorFlow counts a step before it finds that there is no next batch.
                # Each update depends on one group. If it depended on every gradient, preparing the graph would be slow.
                with tf.control_dependencies([tf.group(*[each for each in grads if each is not None])]):
                    return super().apply(grads, variables)
            finally:
                _applying.reduced = False

        def _clip_gradients(self, grads: Any) -> Any:
            # In a step that applies accumulated gradients, Keras passes them to this method before it uses them.
            return super()._clip_gradients(grads if _is_reduced() else how.gradients(list(grads)))

        def __setattr__(self, name: str, value: Any) -> None:
            if name == "loss_scale_factor" and value is None and hasattr(self, name):
                super().__setattr__("headrace_scaled", True)  # a LossScaleOptimizer now wraps this one
            super().__setattr__(name, value)

    # A saved model names its optimizer's class, which should be the plain one.
    Distributed.__name__, Distributed.__qualname__ = base.__name__, base.__qualname__
    Distributed.__module__ = base.__module__
    return Distributed


def prepare(model: keras.Model) -> None:
    """Prepare a compiled model for its distributed optimizer; callbacks call `prepare` before Keras makes a step.

    Under mixed_float16, `compile` wraps the optimizer in a LossScaleOptimizer, which skips a step if gradients
    overflow. If only one rank skipped a step, ranks would average gradients of different steps. So `prepare` makes the
    LossScaleOptimizer average the gradients first. Then all ranks skip a step, or none does.

    XLA compilation, which Keras chooses by itself on a GPU, is turned off: Horovod has no XLA operations.
    """
    optimizer = getattr(model, "optimizer", None)
    how = getattr(getattr(optimizer, "inner_optimizer", None), "headrace_reduction", None)
    if how and not is_distributed(optimizer):
        optimizer.__class__ = distributed_class(type(optimizer), how)
    if collectives.size() > 1 and model.jit_compile and any(map(is_distributed, optimizers_of(model))):
        model.jit_compile = False
        if collectives.rank() == 0 and not _told:
            _told.append("jit_compile")
            print("the step is not compiled by XLA (jit_compile=False): Horovod has no XLA operations", flush=True)


def _each_row_once(grad: tf.IndexedSlices) -> tf.IndexedSlices:
    """Add up all entries for one row of a sparse gradient, because Keras's optimizers would square each entry alone."""
    rows, places = tf.unique(grad.indices)
    return tf.IndexedSlices(tf.math.unsorted_segment_sum(grad.values, places, tf.size(rows)), rows, grad.dense_shape)
