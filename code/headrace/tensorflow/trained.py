"""What this rank trains, and whether the others train the same: told at the end of each epoch, without waiting.

Keras's `fit` (`keras_looks`) and `callbacks.Training` say when an epoch ends. In a script's own loop the end of an
iterator with which it made steps says it, or that so many batches were taken. Ranks are then compared after equally
many steps: one may look at a stream, or evaluate, alone.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from headrace.tensorflow.alike import Comparison, Glance
from headrace.tensorflow.keras import progress_counts
from headrace.tensorflow.ranks import agreement_thread, collectives

LOOKED_AT = 1 << 16
"""Numbers of each variable, from its beginning, that are looked at."""
LOOKED_AT_BATCHES = frozenset({10, 100, 1_000, 10_000, 100_000})
"""Of an iterator that has no end: after so many, ranks may be compared."""
EPOCH = 1 << 40
"""A message's moment, where that is an epoch's end: so many times its number, and the steps made by then."""
_signs = np.random.default_rng(0).choice(np.array([-1, 1], np.float32), LOOKED_AT)
_variables: dict[int, weakref.ref[Any]] = {}
_optimizers: dict[int, weakref.ref[Any]] = {}
_epochs = itertools.count(1)
_comparison = Comparison()
_compared_at = [0]
"""The steps made by the last epoch's end."""
_next_at = [1]
"""The first step at which loops are compared again."""


def note(variables: Iterable[Any], optimizer: Any = None) -> None:
    """Gradients of these are averaged; a constant among them does not count."""
    for each in variables:
        if isinstance(each, (keras.Variable, tf.Variable)):
            _variables[id(each)] = weakref.ref(each)
    if optimizer is not None:
        _optimizers[id(optimizer)] = weakref.ref(optimizer)


def compare() -> None:
    """An epoch is over; rank 0 warns, once, of a rank that has another model than it has.

    One in which no gradients were averaged is none that all ranks make.
    """
    steps = (
        progress_counts.steps() if collectives.size() > 1 and _variables and not _comparison.over else _compared_at[0]
    )
    if steps != _compared_at[0]:
        _compared_at[0] = steps
        _say(next(_epochs) * EPOCH + steps)


def _compare_in_loops() -> None:
    """From now on, where a script takes batches itself."""
    from tensorflow.python.data.ops.iterator_ops import OwnedIterator

    original = OwnedIterator.__next__

    def following(self: Any) -> Any:
        if not tf.executing_eagerly():
            return original(self)
        taken = self.headrace_taken = getattr(self, "headrace_taken", -1) + 1
        if not taken:
            self.headrace_steps = progress_counts.steps()
        if taken in LOOKED_AT_BATCHES:
            _compare_since(self.headrace_steps)
        try:
            return original(self)
        except StopIteration:
            _compare_since(self.headrace_steps)
            raise

    OwnedIterator.__next__ = following


def _compare_since(began: int) -> None:
    """Between two steps, if the thread is that which makes them, and has made some since a step at which it began.

    Seldom, at twice as many as before: scripts iterate over little datasets too, in each step. Variables are noted
    where there are several ranks.
    """
    if not _variables or _comparison.over or threading.current_thread() is not threading.main_thread():
        return
    if (steps := progress_counts.steps()) >= max(_next_at[0], began + 1):
        _next_at[0] = 2 * steps
        _say(-steps)


def _say(moment: int) -> None:
    """Of the end of an epoch, after so many steps; or, below 0, of a step."""
    if collectives.rank() == 0:
        _hear(0, moment, _glance())
    else:
        agreement_thread.tell(moment, *_glance().packed())


def _hear(rank: int, moment: int, glance: Glance) -> None:
    epoch, steps = divmod(moment, EPOCH) if moment > 0 else (moment, 0)
    difference = _comparison.hears(rank, epoch, replace(glance, steps=steps))
    if difference:
        when = f"the end of epoch {epoch}" if moment > 0 else f"step {-moment}"
        print(f"warning: at {when}, {difference}", flush=True)


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


def _heard(rank: int, moment: int, first: int, second: int) -> None:
    if collectives.rank() == 0:
        _hear(rank, moment, Glance.unpacked(first, second))


agreement_thread.listen(_heard)
_compare_in_loops()
