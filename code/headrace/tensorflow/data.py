"""The functions for a training script's data. With `distribute`, the data service makes a dataset's batches.

The recommended order of a pipeline: shuffle → repeat → map → batch → distribute → cast on the trainer → prefetch.
"""

from __future__ import annotations

import os

import tensorflow as tf

from headrace.rank.context import TrainerContext
from headrace.tensorflow.io.arrays import from_arrays
from headrace.tensorflow.keras import rank_meter
from headrace.tensorflow.options import COMPRESSIONS, Distribution
from headrace.tensorflow.ranks import collectives, devices
from headrace.tensorflow.ranks.epoch_end import end_together, with_steps
from headrace.tensorflow.resume import Shards, TaggedDataset
from headrace.tensorflow.service import reader
from headrace.tensorflow.sharding import refusals, split
from headrace.tensorflow.sharding.epoch_orders import in_turn
from headrace.training.freed_memory import keep_freed_memory

__all__ = ["Distribution", "Shards", "distribute", "from_arrays", "prefetch_to_device", "split_by_rank"]

TENSORFLOWS_PARALLELISM = 16
"""Initial number of parallel calls that TensorFlow gives an AUTOTUNE stage on a host with 16 processors or more."""
ON_DEVICE = 2
"""Number of batches that `prefetch_to_device` keeps ready in a GPU's memory."""


def distribute(
    dataset: tf.data.Dataset | TaggedDataset,
    *,
    compression: str = "none",
    sharding: str = "dynamic",
    shared: bool = True,
    coordinated: bool = False,
    data_transfer_protocol: str = "auto",
    max_outstanding_requests: int | None = None,
    uneven: str = "pad",
    exact: bool = True,
    job_name: str = "train",
) -> tf.data.Dataset:
    """Have the job's tf.data workers make a dataset's batches, which the ranks share.

    The contract: what a script can rely on, and what it must do itself:

    1. All ranks make the same calls of `data.distribute` in the same order, each with the same whole dataset.
    2. Stages before the call run on the workers; stages after it run on the rank.
    3. In an epoch without faults the ranks together get exactly the elements that plain tf.data would yield,
       equally often. Pairs, such as an image and its label, stay together, also in batches.
    4. The order of elements, the bounds of batches and new random numbers may differ from plain tf.data. Python
       functions (`py_function`, `from_generator`) are refused.
    5. A dataset that cannot be split exactly is refused. The error names the transformation and what to write
       instead; `exact=False` skips this check.
    6. Training uses `.repeat()` and `steps_per_epoch`, or a finite stream without `steps_per_epoch`. A finite stream
       ends on all ranks after the same number of batches. With `uneven="pad"` a rank that runs out repeats its last
       batch; with `"drop"` all ranks end with the shortest stream.
    7. All ranks iterate equally often. After the call no stage may change the number of batches: no shard, skip or
       filter.
    8. For held-out data use `data.split_by_rank` or `uneven="keep"`. With `MetricAverageCallback` metrics are exact.
    9. The optimizer is `hvd.DistributedOptimizer`; the broadcast callback starts all ranks from rank 0's state.
    10. Variables that a dataset reads have the value that they had at the call.

    In local mode each rank makes its part itself, under the same ten rules. `len` of the result is this rank's number
    of batches, if that is known before training (it is not after a filter, for example).

    Call it after `batch` and before the cast to float, so that little data crosses the network. With `shared=False`
    each rank has its own dataset and gets all of it.

    Args:
        dataset: a dataset of batches, or the tagged batches of `Shards`.
        job_name: name of the call's stream in messages and logs. A number is added if an earlier call used the name.
        others: see `Distribution`.

    Raises:
        InputError: an unknown choice, choices that exclude each other, or a dataset that workers cannot make or ranks
            cannot share; the message says what to change.
    """
    how = Distribution(
        compression=compression,
        sharding=sharding,
        shared=shared,
        coordinated=coordinated,
        data_transfer_protocol=data_transfer_protocol,
        max_outstanding_requests=max_outstanding_requests,
        uneven=uneven,
        exact=exact,
    )
    if isinstance(dataset, TaggedDataset):
        return _distributed(dataset.tagged(), how, job_name).map(dataset.shards.noted)
    return _distributed(dataset, how, job_name)


def _distributed(dataset: tf.data.Dataset, how: Distribution, job_name: str) -> tf.data.Dataset:
    refusals.refuse_other_kinds(dataset)
    collectives.refuse_several_devices()
    job_name = reader.own_name(job_name)
    context = TrainerContext.from_environ(os.environ)
    keep_freed_memory()
    rank_meter.note(dataset.element_spec)
    if context.tf_data_mode == "local":
        return _on_trainer(split.on_this_rank(dataset, how, job_name))
    refusals.refuse_elements(dataset)
    prepared = split.prepare(dataset, how, job_name)
    own, streams = prepared.share is not None or not how.shared, []
    numbers = split.register(prepared.datasets, f"grpc://{context.dispatcher}", COMPRESSIONS[how.compression], own)
    for order, number in enumerate(numbers):
        name, spec = f"{job_name}-order-{order}" if order else job_name, dataset.element_spec
        streams.append(reader.read(number, name, spec, how, context, endless=prepared.endless, own=own))
    stream = in_turn(streams)
    if prepared.endless:
        stream = stream.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    elif prepared.share:
        stream = with_steps(stream, prepared.share.steps(how.uneven))
    else:
        stream = end_together(stream, how.uneven, job_name)
    return _on_trainer(stream)


def split_by_rank(dataset: tf.data.Dataset, *, uneven: str = "keep", name: str = "held_out") -> tf.data.Dataset:
    """Return this rank's part of a dataset, such as a small held-out set. The rank, not a data host, makes it.

    The contract of `distribute` holds here too. With `uneven="keep"` the ranks may have different numbers of batches;
    metrics over all ranks are still exact with `MetricAverageCallback`.

    Raises:
        InputError: the dataset cannot be read in parts; the message says what to change.
    """
    refusals.refuse_other_kinds(dataset)
    return _on_trainer(split.of_this_rank(dataset, Distribution(uneven=uneven).uneven, name))


def prefetch_to_device(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Copy each batch to this rank's GPU during the step before it.

    Use it as the last stage of a pipeline, in place of `prefetch`. Without a GPU it returns the dataset unchanged.
    """
    gpus = tf.config.list_logical_devices("GPU")
    if not gpus:
        return dataset
    return dataset.apply(tf.data.experimental.prefetch_to_device(gpus[0].name, ON_DEVICE))


def _on_trainer(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return the dataset without tf.data's autotuning thread, which can sleep up to a minute when an iterator ends.

    See docs/tensorflow-autotune.md. An AUTOTUNE stage then keeps its initial parallelism: the larger of TensorFlow's
    own value and this rank's share of the host's processors, so that a large host uses all of them.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    own = dataset.options().autotune.initial_parallelism
    options.autotune.initial_parallelism = own or max(devices.processors(), TENSORFLOWS_PARALLELISM)
    return refusals.given_out(dataset.with_options(options))
