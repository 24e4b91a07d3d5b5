"""What this rank trains, and whether the others train the same: told at the end of each epoch, without waiting."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from headrace.tensorflow import agreement_thread, world
from headrace.tensorflow.alike import Comparison, Glance

LOOKED_AT = 1 << 16
"""Numbers of each variable, from its beginning, that are looked at."""
ADVICE = (
    "though their gradients are averaged. Give each model hvd.callbacks.BroadcastGlobalVariablesCallback(0) (in a "
    "loop: hvd.broadcast_variables), and put what changes the learning rate after "
    "hvd.callbacks.MetricAverageCallback()"
)
_signs = np.random.default_rng(0).choice(np.array([-1, 1], np.float32), LOOKED_AT)
_variables: dict[int, weakref.ref[Any]] = {}
_optimizers: dict[int, weakref.ref[Any]] = {}
_epochs = itertools.count(1)
_comparison = Comparison()


def note(variables: Iterable[Any], optimizer: Any = None) -> None:
    """Gradients of these are averaged; a constant among them does not count."""
    for each in variables:
        if isinstance(each, (keras.Variable, tf.Variable)):
            _variables[id(each)] = weakref.ref(each)
    if optimizer is not None:
        _optimizers[id(optimizer)] = weakref.ref(optimizer)


def compare() -> None:
    """An epoch is over; rank 0 warns, once, of a rank that has another model than it has."""
    if world.size() == 1 or not _variables or _comparison.over:
        return
    epoch, glance = next(_epochs), _glance()
    if world.rank() == 0:
        _hear(0, epoch, glance)
    else:
        agreement_thread.tell(epoch, *glance.packed())


def _hear(rank: int, epoch: int, glance: Glance) -> None:
    difference = _comparison.hears(rank, epoch, glance)
    if difference:
        print(f"warning: at the end of an epoch, {difference}, {ADVICE}", flush=True)


def _glance() -> Glance:
    variables, optimizers = _alive(_variables), _alive(_optimizers)
    projection = squares = 0.0
    for each in variables:
        values = tf.reshape(each.value if isinstance(each, keras.Variable) else each, [-1])[:LOOKED_AT]
        if values.dtype.is_floating:
            numbers = tf.cast(values, tf.float32).numpy()
            projection += float(numbers @ _signs[: numbers.size])
            squares += float(numbers @ numbers)
    return Glance(projection, float(np.sqrt(squares)), sum(map(_rate, optimizers)), len(variables) + len(optimizers))


def _alive(references: dict[int, weakref.ref[Any]]) -> list[Any]:
    return [each for each in (reference() for reference in references.copy().values()) if each is not None]


def _rate(optimizer: Any) -> float:
    try:
        return float(np.asarray(optimizer.learning_rate))
    except (AttributeError, TypeError, ValueError, NotImplementedError):
        return 0.0  # it has none that can be asked for


def _heard(rank: int, epoch: int, first: int, second: int) -> None:
    if world.rank() == 0:
        _hear(rank, epoch, Glance.unpacked(first, second))


agreement_thread.listen(_heard)
