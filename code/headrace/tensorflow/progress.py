"""What shows that this rank makes progress: how many collectives and batches it has had.

Collectives are counted by TensorFlow itself, in a variable, so that it works in graphs and in any loop; batches by
the transfer library. The thread that `headrace.host.rank` runs beside the script reads both.
"""

from __future__ import annotations

import tensorflow as tf

from headrace import progress
from headrace.tensorflow import transfer

_counters: dict[str, tf.Variable] = {}


def count_collective() -> None:
    """One more collective, each time the graph that is being made (or this very call) runs."""
    _counter("collectives").assign_add(1, read_value=False)


def count_transferred() -> None:
    """From now on the batches that come by headrace's own protocol count."""
    library = transfer.library_path()
    progress.add_counter(lambda: transfer.batches_received(library))


def _counter(name: str) -> tf.Variable:
    if name not in _counters:
        with tf.init_scope(), tf.device("CPU:0"):
            variable = tf.Variable(0, dtype=tf.int64, trainable=False, name=f"headrace_{name}")
        _counters[name] = variable
        progress.add_counter(lambda: int(variable.numpy()))
    return _counters[name]
