"""What a sample takes on the wire, as the specification of what `distribute` gets tells it."""

from __future__ import annotations

import math
import os
from typing import Any

import tensorflow as tf

from headrace.events import READS_DATA, say
from headrace.rank.context import TrainerContext

_specs: list[Any] = []


def note(spec: Any) -> None:
    """The elements of a distributed dataset; the first of a script is the one that it trains on.

    With the first, the launcher hears that this rank may wait for data.
    """
    if not _specs and TrainerContext.from_environ(os.environ).signal_dir.name:
        say(READS_DATA)
    _specs.append(spec)


def sample_bytes(batch_size: int) -> float:
    """Bytes of a sample of the first distributed dataset; 0 where its specification leaves them open."""
    return batch_bytes(_specs[0], batch_size) / batch_size if _specs else 0.0


def batch_bytes(spec: Any, batch_size: int) -> float:
    """Bytes of a batch of that many samples; 0: not all of its shapes and types are known."""
    total = 0
    for each in tf.nest.flatten(spec):
        if not isinstance(each, tf.TensorSpec) or each.shape.rank is None or not each.dtype.size:
            return 0.0
        sizes = [batch_size if size is None and place == 0 else size for place, size in enumerate(each.shape)]
        if None in sizes:
            return 0.0
        total += math.prod(sizes) * each.dtype.size
    return float(total)
