"""Refuses a batch once a variable that makes it has changed: who makes batches was sent its value before.

A dataset's functions may read a variable, a layer's or a model's weights. In plain tf.data they read what it holds just
then; workers, and ranks with a part of their own, what it held at `data.distribute`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from headrace.errors import InputError
from headrace.tensorflow import origin
from headrace.tensorflow.now_and_then import now_and_then
from headrace.tensorflow.sharding.random_state import written_by

SHARE = 50
"""Of the time, at most the so-manieth part goes into looks at variables."""
PLACES = 4096
"""Compared, of a large variable."""


def refuse_changes(dataset: tf.data.Dataset, stream: tf.data.Dataset) -> tf.data.Dataset:
    """The stream of a dataset's batches, which raises when a variable has changed that the dataset's functions read."""
    read = list(_read_by(dataset, set()))
    next_s = 0.0

    def look(at: np.int64) -> None:
        nonlocal next_s
        began_s = time.monotonic()
        if at and began_s < next_s:
            return
        for each in read:
            each.compare()
        took_s = time.monotonic() - began_s
        next_s = began_s + SHARE * took_s

    return now_and_then(stream, look) if read else stream


@dataclass(frozen=True)
class _Read:
    """A variable, as it was."""

    handle: tf.Tensor
    dtype: tf.DType
    name: str
    where: str
    before: bytes

    def compare(self) -> None:
        if _values(self.handle, self.dtype) != self.before:
            raise InputError(
                f"{self.where}: the dataset reads the variable {self.name}, which has changed since data.distribute, "
                "and whoever makes the batches has its value of then: data.distribute a dataset anew after each change"
            )


def _read_by(dataset: Any, seen: set[int]) -> Iterator[_Read]:
    if id(dataset) in seen:
        return
    seen.add(id(dataset))
    cached = "CacheDataset" in type(dataset).__name__  # what is below it is made once, in plain tf.data too
    for each in dataset._inputs() if not cached else ():
        yield from _read_by(each, seen)
    for wrapper in dataset._functions():
        function = wrapper.function
        captured = [(place, each) for place, each in enumerate(function.captured_inputs) if each.dtype == tf.resource]
        variables = [(place, each) for place, each in captured if _dtype(each) is not None and id(each) not in seen]
        seen |= {id(each) for _, each in variables}
        written = _places_written(function) if variables else set()
        for place, handle in variables:
            if place not in written:  # a random generator's state is
                dtype = _dtype(handle)
                yield _Read(handle, dtype, _name(function, handle), origin.line_of(dataset), _values(handle, dtype))


def _places_written(function: Any) -> set[int]:
    """Of what is captured."""
    library = function.graph.as_graph_def().library.function
    functions = {each.signature.name: each for each in (*library, function.function_def)}
    places = [str(place) for place in range(len(function.captured_inputs))]
    written = written_by(functions, function.function_def.signature.name, places, ())
    return {int(place) for _, place in written if place}


def _dtype(handle: Any) -> Any:
    """Of the variable; None: it is no variable."""
    told = handle._handle_data
    return tf.as_dtype(told.shape_and_type[0].dtype) if told is not None and told.is_set else None


def _values(handle: tf.Tensor, dtype: tf.DType) -> bytes:
    value = tf.reshape(tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype), [-1])
    some = value[:: max(int(tf.size(value)) // PLACES, 1)].numpy()
    return repr(some.tolist()).encode() if some.dtype.hasobject else some.tobytes()  # texts are objects


def _name(function: Any, handle: Any) -> str:
    named = (each.name for each in function.graph.variables if each.handle is handle)
    return next(named, "?")
