"""Keras takes the first epoch's steps for every epoch's; a stream that ranks share has longer and shorter ones.

What a later epoch had beyond the first one's steps, and one, was never trained on, and nothing was said. And where an
epoch ends with its data, Keras counts one step too many: learning rate schedules and accumulated gradients went ahead.
Where `steps_per_epoch` is given, Keras begins a dataset again only if it knows how many batches there are. So a stream
that ends is repeated there, and each epoch has as many steps as the script says.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from headrace.tensorflow import afterwards
from headrace.tensorflow.keras import evaluation

_MARK = "_headrace_ends"


def end_by_themselves() -> None:
    """From now on an epoch of a dataset of unknown length lasts as long as its batches. Called once."""
    from keras.src.trainers.epoch_iterator import EpochIterator

    if hasattr(EpochIterator, _MARK):
        return
    original, warning = EpochIterator.catch_stop_iteration, EpochIterator._interrupted_warning
    enumerate_steps = EpochIterator._enumerate_iterator

    def goes_on(self: Any) -> Iterator[Any]:
        stream: Any = getattr(self, "_distributed_dataset", None)
        begins = self.steps_per_epoch and self._current_iterator is None and not self._num_batches
        trains = isinstance(stream, tf.data.Dataset) and not evaluation.is_running()
        if begins and trains and afterwards.is_of_a_result(stream):
            self._current_iterator = iter(stream.repeat())
        return enumerate_steps(self)

    @contextlib.contextmanager
    def catch(self: Any) -> Iterator[None]:
        with original(self):
            yield
        self._num_batches = self.data_adapter.num_batches  # as it was known before, and not as it was counted

    def warn(self: Any) -> None:
        if self.steps_per_epoch or self.data_adapter.num_batches:  # else the end is no surprise
            warning(self)

    EpochIterator.catch_stop_iteration, EpochIterator._interrupted_warning = catch, warn
    EpochIterator._enumerate_iterator = goes_on
    setattr(EpochIterator, _MARK, True)
    _count_steps_that_are_made()
    _step_after_its_batch()


def _step_after_its_batch() -> None:
    """Where a batch is of a known size, TensorFlow would count it in metrics before it finds that there is none."""
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    make_function = TensorFlowTrainer._make_function

    def made(self: Any, step: Callable[[Any], Any]) -> Any:
        def after_its_batch(data: Any) -> Any:
            batch = [*filter(tf.is_tensor, tf.nest.flatten(data, expand_composites=True))]
            with tf.variable_creator_scope(_made_before_any_batch), tf.control_dependencies(batch):
                return step(data)

        return make_function(self, after_its_batch)

    TensorFlowTrainer._make_function = made


def _made_before_any_batch(create: Callable[..., Any], **how: Any) -> Any:
    """A variable of a metric, say, which the first step makes: its initial value waits for nothing."""
    with tf.control_dependencies(None):
        return create(**how)


def _count_steps_that_are_made() -> None:
    from keras.src import backend
    from keras.src.optimizers.base_optimizer import BaseOptimizer

    original = BaseOptimizer.apply

    @functools.wraps(original)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        grads, variables = list(grads), None if trainable_variables is None else list(trainable_variables)
        if grads and variables and not self.built:  # as Keras does, which may not be below: XLA would not have it
            with backend.name_scope(self.name, caller=self):
                self.build(variables)
            self.built = True
        # TensorFlow would count up at once, before it finds that there is no next batch.
        with tf.control_dependencies([each for each in grads if each is not None]):
            return original(self, grads, variables)

    BaseOptimizer.apply = apply
