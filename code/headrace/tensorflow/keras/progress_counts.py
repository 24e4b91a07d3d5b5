"""What shows that this rank makes progress: how many collectives and batches it has had.

Collectives are counted by TensorFlow itself, in a variable, so that it works in graphs and in any loop; batches by
the transfer library. The thread that `headrace.rank` runs beside the script reads both.
"""

from __future__ import annotations

import functools

import tensorflow as tf

from headrace.rank import liveness, receipts
from headrace.tensorflow.ranks import collectives
from headrace.tensorflow.service import transfer

APART = (
    "warning: no gradients were averaged by headrace; unless the script does it, each rank trains a model of its own: "
    "wrap the optimizer in hvd.DistributedOptimizer, or the tape in hvd.DistributedGradientTape"
)
_counters: dict[str, tf.Variable] = {}
_resumed_at = [0]
_warned: list[str] = []


def count_collective() -> None:
    """One more collective, each time the graph that is being made (or this very call) runs."""
    _counter("collectives").assign_add(1, read_value=False)


def steps() -> int:
    """How often this rank has averaged gradients with the others, those of the ideal step's measurement too."""
    counter = _counters.get("collectives")
    return 0 if counter is None else int(counter.numpy())


def resume_at(step: int) -> None:
    """An earlier run has made so many steps of the epoch that begins."""
    _resumed_at[0] = step


def resumed_at() -> int:
    """Steps of the present epoch that an earlier run has made."""
    return _resumed_at[0]


def warn_if_apart() -> None:
    """To be called at the end of an epoch, by then the gradients of several ranks have been averaged; warns once."""
    if collectives.size() > 1 and collectives.rank() == 0 and "collectives" not in _counters and not _warned:
        _warned.append(APART)
        print(APART, flush=True)


@functools.cache
def count_transferred() -> None:
    """From now on the batches that come by headrace's own protocol count."""
    library = transfer.library_path()
    liveness.add_counter(lambda: transfer.batches_received(library))
    receipts.add_source(lambda: transfer.received(library))


def _counter(name: str) -> tf.Variable:
    if name not in _counters:
        with tf.init_scope(), tf.device("CPU:0"):
            variable = tf.Variable(0, dtype=tf.int64, trainable=False, name=f"headrace_{name}")
        _counters[name] = variable
        liveness.add_counter(lambda: int(variable.numpy()))
    return _counters[name]
