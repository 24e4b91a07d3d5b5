"""Start all ranks from one rank's state, even if a model makes its weights only in the first step."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from headrace.errors import InputError
from headrace.tensorflow import compat
from headrace.tensorflow.keras.optimizer import optimizers_of, prepare
from headrace.tensorflow.keras.steps import Logs
from headrace.tensorflow.ranks import collectives

measured: weakref.WeakKeyDictionary[keras.Model, bool] = weakref.WeakKeyDictionary()
"""For each model, whether this rank has `callbacks.Measure`. The broadcast callback sets False if any rank lacks it."""


def is_built(model: keras.Model) -> bool:
    """Return whether the model has all its weights."""
    return bool(model.weights) and (model.built or all(layer.built for layer in compat.layers_of(model)))


@contextlib.contextmanager
def called_built(model: keras.Model) -> Iterator[None]:
    """While weights are saved or loaded, set `built` to True. Keras never sets it if the model has no method `call`."""
    was = model.built
    model.built = was or is_built(model)
    try:
        yield
    finally:
        model.built = was


def build(model: keras.Model, spec: Any) -> bool:
    """Make the model's weights for batches of this element specification; return whether the model has them now.

    A model with its own `train_step` may lack a `call` method. Then only its first step makes the weights.
    """
    if is_built(model):
        return True
    inputs = spec[0] if isinstance(spec, tuple) else spec
    try:
        model(tf.nest.map_structure(lambda each: keras.KerasTensor(tuple(each.shape), each.dtype.name), inputs))
    except Exception:  # a model may raise any error when its input is symbolic
        return False
    return is_built(model)


def build_optimizer(model: keras.Model, optimizer: Any) -> None:
    """Build the optimizer if the model's weights exist. An optimizer built without weights would never get state."""
    if optimizer is not None and not optimizer.built and is_built(model):
        optimizer.build(model.trainable_variables)


def broadcast_state(model: keras.Model, root_rank: int = 0) -> None:
    """Give every rank the weights and the optimizer state of `root_rank`. Each rank keeps its own random seeds."""
    if collectives.size() == 1:
        return
    build_optimizer(model, getattr(model, "optimizer", None))
    variables = [*model.weights, *(variable for each in optimizers_of(model) for variable in each.variables)]
    if len(set(collectives.of_all_ranks(len(variables), "headrace.state"))) > 1:
        raise InputError(
            "an optimizer has state on some ranks and none on others: on every rank, call its build(variables) before "
            "a checkpoint is restored"
        )
    hvd.broadcast_variables([variable.value for variable in variables], root_rank=root_rank)


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Copies the state of `root_rank` to all ranks before the first step.

    If weights are missing at that time, it copies after the first step. All ranks must call the same methods.
    """

    def __init__(self, root_rank: int = 0) -> None:
        super().__init__()
        self.root_rank = root_rank
        self._due, self._stepped = True, False

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        prepare(model)

    def on_train_begin(self, logs: Logs = None) -> None:
        self._due, self._stepped = True, False
        self._before_step()

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        if self._stepped:
            self.after_step()
        elif self._due:
            self._before_step()
        self._stepped = True  # the step that now begins makes all missing weights

    def after_step(self) -> None:
        """Broadcast the state after the first step, if the weights did not exist before it."""
        if self._due and self._stepped:
            self._broadcast()

    def _before_step(self) -> None:
        own = [is_built(self.model), len(self.model.weights), measured.get(self.model, False)]
        everyones = collectives.of_all_ranks(own, "headrace.built")
        if not all(measures for *_, measures in everyones):
            measured[self.model] = False
        if all(built for built, *_ in everyones):
            self._broadcast()
        elif all(found[:2] == own[:2] for found in everyones) and self.model.weights:
            hvd.broadcast_variables([variable.value for variable in self.model.weights], root_rank=self.root_rank)

    def _broadcast(self) -> None:
        self._due = False
        broadcast_state(self.model, self.root_rank)

    def on_test_begin(self, logs: Logs = None) -> None:
        self.after_step()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self.after_step()
