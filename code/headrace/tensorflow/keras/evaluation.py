"""Keras's evaluations and predictions: what they read ends on each rank by itself, so that each batch counts once.

Unless a step of theirs waits for the other ranks, as a `test_step` that averages does: then all make equally many.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

_HOROVODS = "Horovod"
"""How its operations begin."""
_STREAM = "headrace_stream"
_waits: weakref.WeakKeyDictionary[Any, bool | None] = weakref.WeakKeyDictionary()
"""Whether a step of a model's evaluation waits for other ranks; None until its graph is made."""


class Evaluation:
    """One call of `evaluate` or `predict`.

    Args:
        streams: what it reads.
        predicts: whether it is one of `predict`.
    """

    def __init__(self, model: Any, streams: list[Any], predicts: bool) -> None:
        self._model, self.streams, self._predicts = model, streams, predicts

    def pads(self) -> bool | None:
        """Whether ranks are to make equally many steps; None while that is not known.

        They do where nobody can see what a step does: eagerly, and in functions that a model makes in Keras's place.
        """
        return False if self._predicts else self._model.run_eagerly or _waits.get(self._model, True)


_current: list[Evaluation] = []


def read_as(dataset: tf.data.Dataset, stream: Any) -> tf.data.Dataset:
    """The dataset, of which an evaluation that reads it, or what is made of it, knows the stream."""
    setattr(dataset, _STREAM, stream)
    return dataset


def is_running() -> bool:
    """Whether Keras evaluates or predicts, and does not train."""
    return bool(_current)


def which_reads(stream: Any) -> Evaluation | None:
    """The evaluation that reads a stream. A training stream may begin a pass, to read ahead, during another's."""
    return next((each for each in reversed(_current) if any(one is stream for one in each.streams)), None)


def look(step_is_known: Callable[[], None]) -> None:
    """From now on evaluations are noticed. Called once.

    Args:
        step_is_known: called when `Evaluation.pads` may have changed.
    """
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    TensorFlowTrainer.evaluate = _noticed(TensorFlowTrainer.evaluate, predicts=False)
    TensorFlowTrainer.predict = _noticed(TensorFlowTrainer.predict, predicts=True)
    make_function = TensorFlowTrainer._make_function

    def made(self: Any, step: Callable[[Any], Any]) -> Any:
        if step != self.test_step:
            return make_function(self, step)

        def looked_at(data: Any) -> Any:
            result = step(data)
            if not tf.executing_eagerly():
                _waits[self] = _has_collectives(tf.compat.v1.get_default_graph())
                step_is_known()
            return result

        _waits[self] = None
        return make_function(self, looked_at)

    TensorFlowTrainer._make_function = made


def _noticed(call: Callable[..., Any], predicts: bool) -> Callable[..., Any]:
    @functools.wraps(call)
    def noticed(self: Any, *args: Any, **kwargs: Any) -> Any:
        mine = Evaluation(self, _streams_of(args[0] if args else kwargs.get("x")), predicts)
        _current.append(mine)
        try:
            return call(self, *args, **kwargs)
        finally:
            _current.remove(mine)

    return noticed


def _streams_of(dataset: Any) -> list[Any]:
    found, waiting = [], [dataset] if isinstance(dataset, tf.data.Dataset) else []
    while waiting:
        each = waiting.pop()
        stream = getattr(each, _STREAM, None)
        if stream is None:
            waiting += each._inputs()
        else:
            found.append(stream)
    return found


def _has_collectives(graph: Any) -> bool:
    """Whether a graph, or a function that it calls, has operations of Horovod's."""
    definition = graph.as_graph_def()
    nodes = (definition.node, *(each.node_def for each in definition.library.function))
    return any(node.op.startswith(_HOROVODS) for several in nodes for node in several)
