"""Every private name of TensorFlow and Keras that headrace uses.

No other module of headrace imports `tensorflow.python` or reads an attribute with an underscore. So when a new
TensorFlow renames something, only this file must change. `tests/integration/test_compat.py` checks that the installed
version has all these names; TensorFlow 2.20 to 2.22 and Keras 3.12 to 3.15 have them. The one exception is
`headrace.tensorflow.service.pywrap_servers`, with its own private names: it must do without `import tensorflow`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from tensorflow.core.framework.dataset_options_pb2 import Options as OptionsProto
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.python.data.experimental.ops import data_service_ops
from tensorflow.python.data.ops.optional_ops import _OptionalImpl
from tensorflow.python.data.ops.options import ExternalStatePolicy
from tensorflow.python.data.util import nest as data_nest
from tensorflow.python.framework import op_def_registry
from tensorflow.python.framework.extension_type import ExtensionTypeSpec
from tensorflow.python.ops import stateful_random_ops

__all__ = ["ExtensionTypeSpec", "GraphDef", "OptionsProto", "data_nest"]

registered_dataset = data_service_ops._from_dataset_id
"""Function for datasets made by tf.data workers. Unlike `from_dataset_id`, it takes `task_refresh_interval_hint_ms`."""
optional_of = _OptionalImpl
"""Class for the optional value in a variant tensor. Its arguments are the tensor and the value's specification."""
OVERRIDDEN = ((keras.optimizers.Optimizer, "_clip_gradients"), (keras.layers.BatchNormalization, "_moments"))
"""Pairs of a Keras class and one of its private methods. Subclasses in headrace override these methods."""


def layers_of(model: keras.Model) -> Sequence[keras.layers.Layer]:
    """Return all layers of a model, nested ones too, in the order in which they were made."""
    return list(model._flatten_layers(include_self=False))


def inputs_of(dataset: Any) -> Sequence[tf.data.Dataset]:
    """Return the datasets that a dataset reads."""
    return dataset._inputs()


def functions_of(dataset: Any) -> Sequence[Any]:
    """Return the functions that a dataset calls. Each has its traced form in `function`, its Python form in `_func`."""
    return dataset._functions()


def name_of_function(function: Any) -> str:
    """Return the Python name, such as `decode`, of a function that `functions_of` has returned."""
    return str(getattr(function._func, "__name__", type(function._func).__name__))


def argument_of(dataset: Any, name: str) -> Any:
    """Return an argument of a dataset's transformation, such as `count` or `batch_size`; None if there is none."""
    return getattr(dataset, f"_{name}", None)


def function_in(graph: Any, name: str) -> Any:
    """Return the graph of the function `name`, which an operation in `graph` calls."""
    return graph._get_function(name).graph


def variant_of(dataset: Any) -> tf.Tensor:
    """Return the tensor that stands for a dataset within graphs."""
    return dataset._variant_tensor


def graph_of(dataset: tf.data.Dataset) -> bytes:
    """Return a dataset's serialized GraphDef, as workers receive it. It holds the current values of variables."""
    return dataset._as_serialized_graph(external_state_policy=ExternalStatePolicy.IGNORE).numpy()


def global_generator() -> tf.random.Generator | None:
    """Return TensorFlow's global random generator, or None if there is none. The public function would make one."""
    return stateful_random_ops.global_generator


def arguments_of(op: str) -> Any:
    """Return the definitions of an operation's inputs."""
    return op_def_registry.get(op).input_arg
