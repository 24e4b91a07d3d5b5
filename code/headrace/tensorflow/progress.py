"""What shows that this rank makes progress: how many collectives and batches it has had.

Counted by TensorFlow itself, in variables, so that it works in graphs and in anybody's loop; read by the thread that
`headrace.host.rank` runs beside the script.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from headrace import progress

_counters: dict[str, tf.Variable] = {}


def count_collective() -> None:
    """One more collective, each time the graph that is being made (or this very call) runs."""
    _counter("collectives").assign_add(1, read_value=False)


def counted(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset, its batches counted as they are taken."""
    counter = _counter("batches")

    def count(*batch: Any) -> Any:
        counter.assign_add(1, read_value=False)
        return batch if isinstance(dataset.element_spec, tuple) else batch[0]

    return dataset.map(count)


def _counter(name: str) -> tf.Variable:
    if name not in _counters:
        with tf.init_scope(), tf.device("CPU:0"):
            variable = tf.Variable(0, dtype=tf.int64, trainable=False, name=f"headrace_{name}")
        _counters[name] = variable
        progress.add_counter(lambda: int(variable.numpy()))
    return _counters[name]
