"""The measurements of a TensorFlow rank: its meter, the counters that show progress, and the size of a sample.

Collectives are counted in a TensorFlow variable, so that counting works inside graphs and in custom loops. The transfer
library counts batches. `headrace.rank` reads both counters, in a thread beside the script.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from headrace.events import READS_DATA, say
from headrace.rank import liveness, receipts
from headrace.rank.context import TrainerContext
from headrace.tensorflow.ranks import collectives
from headrace.tensorflow.service import transfer
from headrace.training.meter import Meter

APART = (
    "warning: no gradients were averaged by headrace. Unless the script averages them, each rank trains its own model: "
    "wrap the optimizer in hvd.DistributedOptimizer, or the tape in hvd.DistributedGradientTape"
)
_collectives: list[tf.Variable] = []
resumed_at = 0
"""Number of steps of the present epoch that an earlier run has made."""
_specs: list[Any] = []


def open_meter(batch_size: int, log_every: int) -> Meter:
    """Return the meter that measures training on this rank."""
    return Meter(collectives.rank, collectives.size, batch_size, log_every, _Scalars, lambda: sample_bytes(batch_size))


def count_collective() -> None:
    """Add 1 to the number of collectives. In a tf.function, each run of the graph adds 1, and tracing adds nothing."""
    if not _collectives:
        # Lifting a variable out of a tf.function traces the function a second time: seconds for a large model.
        how = {"experimental_enable_variable_lifting": False, "name": "headrace_collectives"}
        with tf.init_scope(), tf.device("CPU:0"):
            _collectives.append(tf.Variable(0, dtype=tf.int64, trainable=False, **how))
        liveness.add_counter(steps)
    _collectives[0].assign_add(1, read_value=False)


def steps() -> int:
    """Return how many times this rank has averaged gradients. Steps that only measure the ideal step time count too."""
    return int(_collectives[0].numpy()) if _collectives else 0


@functools.cache
def warn_if_apart() -> None:
    """Warn once if no gradients have been averaged. Call this at an epoch's end."""
    if collectives.size() > 1 and collectives.rank() == 0 and not _collectives:
        print(APART, flush=True)


@functools.cache
def count_transferred() -> None:
    """From now on, count each batch that arrives by headrace's own transfer protocol as progress of this rank."""
    library = transfer.library_path()
    liveness.add_counter(lambda: transfer.batches_received(library))
    receipts.add_source(lambda: transfer.received(library))


def note(spec: Any) -> None:
    """Remember a distributed dataset's element specification. The first such dataset counts as the training data.

    The first call also tells the launcher that this rank is about to read data, and may have to wait for it.
    """
    if not _specs and TrainerContext.from_environ(os.environ).signal_dir.name:
        say(READS_DATA)
    _specs.append(spec)


def sample_bytes(batch_size: int) -> float:
    """Return the size of a sample of the first distributed dataset, in bytes; 0 if its specification does not tell."""
    total = 0
    for each in tf.nest.flatten(_specs[:1]):
        if not isinstance(each, tf.TensorSpec) or each.shape.rank is None or not each.dtype.size:
            return 0.0
        sizes = [batch_size if size is None and place == 0 else size for place, size in enumerate(each.shape)]
        if None in sizes:
            return 0.0
        total += math.prod(sizes) * each.dtype.size
    return total / batch_size


class _Scalars:
    def __init__(self, folder: Path) -> None:
        with _as_pythons():
            self._writer = tf.summary.create_file_writer(str(folder))

    def write(self, step: int, values: dict[str, float]) -> None:
        with _as_pythons(), tf.device("CPU:0"), self._writer.as_default(step=step):
            for name, value in values.items():
                tf.summary.scalar(name, value)

    def close(self) -> None:
        with _as_pythons():
            self._writer.close()


@contextlib.contextmanager
def _as_pythons() -> Iterator[None]:
    """Raise `OSError` instead of TensorFlow's errors, such as the error for a full disk."""
    try:
        yield
    except tf.errors.OpError as error:
        raise OSError(error.message) from error
