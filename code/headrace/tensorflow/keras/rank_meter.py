"""The meter of a TensorFlow rank: Horovod's rank and size, TensorFlow's writer for TensorBoard."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

from headrace.tensorflow.keras import sample_size
from headrace.tensorflow.ranks import collectives
from headrace.training.meter import Meter


def open_meter(batch_size: int, log_every: int) -> Meter:
    """What training is measured by on this rank."""
    return Meter(
        collectives.rank,
        collectives.size,
        batch_size,
        log_every,
        _Scalars,
        lambda: sample_size.sample_bytes(batch_size),
    )


class _Scalars:
    """TensorBoard's files, in a folder."""

    def __init__(self, folder: Path) -> None:
        with _as_pythons():
            self._writer = tf.summary.create_file_writer(str(folder))

    def write(self, step: int, values: dict[str, float]) -> None:
        with _as_pythons(), self._writer.as_default(step=step):
            for name, value in values.items():
                tf.summary.scalar(name, value)

    def close(self) -> None:
        with _as_pythons():
            self._writer.close()


@contextlib.contextmanager
def _as_pythons() -> Iterator[None]:
    """TensorFlow has an error of its own for a full disk."""
    try:
        yield
    except tf.errors.OpError as error:
        raise OSError(error.message) from error
