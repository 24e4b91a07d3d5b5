"""Models that make their weights for the first batch that they see: a `Sequential` without `Input`, subclassed ones."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf


def is_built(model: keras.Model) -> bool:
    """Whether all weights are there."""
    return bool(model.weights) and (
        model.built or all(layer.built for layer in model._flatten_layers(include_self=False))
    )


@contextlib.contextmanager
def called_built(model: keras.Model) -> Iterator[None]:
    """Keras saves and loads a model alone that it calls built: not one of a `train_step` of its own and no `call`."""
    was = model.built
    model.built = was or is_built(model)
    try:
        yield
    finally:
        model.built = was


def build(model: keras.Model, spec: Any) -> bool:
    """Make the weights, as a batch of this `element_spec` would; whether they are there now.

    A model with a `train_step` of its own may have nothing to call: its first step makes them.
    """
    if is_built(model):
        return True
    inputs = spec[0] if isinstance(spec, tuple) else spec
    try:
        model(tf.nest.map_structure(lambda each: keras.KerasTensor(tuple(each.shape), each.dtype.name), inputs))
    except Exception:  # whatever a model does that is called without numbers
        return False
    return is_built(model)


def optimizers_of(model: keras.Model) -> list[Any]:
    """The compiled one, and those that the model's own attributes hold, as a GAN's do."""
    held = [each for name, each in vars(model).items() if not name.startswith("_")]
    within = (
        each.values() if isinstance(each, dict) else each for each in held if isinstance(each, dict | list | tuple)
    )
    found = [getattr(model, "optimizer", None), *held, *itertools.chain.from_iterable(within)]
    return list({id(each): each for each in found if isinstance(each, keras.optimizers.Optimizer)}.values())


def build_optimizer(model: keras.Model, optimizer: Any) -> None:
    """Make its state, once the model has weights: for none, it could never take any."""
    if optimizer is not None and not optimizer.built and is_built(model):
        optimizer.build(model.trainable_variables)
