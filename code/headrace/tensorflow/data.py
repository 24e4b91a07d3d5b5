"""The data path: one line that has the data service make a dataset's batches."""

from __future__ import annotations

import os

import tensorflow as tf

from headrace.context import TrainerContext
from headrace.errors import InputError

COMPRESSIONS = {"none": None, "snappy": "SNAPPY", "auto": "AUTO"}


def distribute(dataset: tf.data.Dataset, *, compression: str = "none", job_name: str = "train") -> tf.data.Dataset:
    """The same dataset, made by the job's tf.data workers; in local mode, `dataset` untouched.

    Put it after `batch` and before the cast to float: what crosses the wire should be small. All
    ranks that use one `job_name` share one stream and split it (`DYNAMIC` sharding), so `dataset`
    must not be sharded by rank in service mode, and should be repeated.

    Args:
        dataset: batches, as the workers are to make them.
        compression: `none` (default: on a cluster network it costs more than it saves), `snappy`,
            or `auto` (TensorFlow's default).
        job_name: which stream this is; a second dataset of the same script needs a second name.

    Raises:
        InputError: an unknown compression.
    """
    if compression not in COMPRESSIONS:
        raise InputError(f"compression is {compression!r}; expected one of {', '.join(COMPRESSIONS)}")
    context = TrainerContext.from_environ(os.environ)
    if context.tf_data_mode == "local":
        return dataset
    service = tf.data.experimental.service
    return dataset.apply(
        service.distribute(
            processing_mode=service.ShardingPolicy.DYNAMIC,
            service=f"grpc://{context.dispatcher}",
            job_name=f"{context.job_name}-{job_name}",
            compression=COMPRESSIONS[compression],
        )
    )


def shard(dataset: tf.data.Dataset, size: int, rank: int) -> tf.data.Dataset:
    """This rank's part of a list of files, in local mode; in service mode all, since the service splits it."""
    context = TrainerContext.from_environ(os.environ)
    if context.tf_data_mode == "service" or size == 1:
        return dataset
    return dataset.shard(size, rank)
