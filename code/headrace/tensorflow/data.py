"""The data path: one line that has the data service make a dataset's batches.

The order that suits it: shuffle → repeat → map → batch → distribute → cast on the trainer → prefetch.
"""

from __future__ import annotations

import os
from dataclasses import replace

import tensorflow as tf

from headrace.errors import InputError
from headrace.rank.context import TrainerContext
from headrace.tensorflow import afterwards
from headrace.tensorflow.captured import refuse_changes
from headrace.tensorflow.io import arrays
from headrace.tensorflow.io.arrays import from_arrays
from headrace.tensorflow.keras import rank_meter
from headrace.tensorflow.options import COMPRESSIONS, Distribution
from headrace.tensorflow.ranks import collectives
from headrace.tensorflow.ranks.epoch_end import end_together, with_steps
from headrace.tensorflow.resume import Shards
from headrace.tensorflow.service import reader
from headrace.tensorflow.service.compression import choose_compression
from headrace.tensorflow.sharding import refusals, split
from headrace.tensorflow.sharding.epoch_orders import in_turn
from headrace.training.freed_memory import keep_freed_memory

__all__ = ["Distribution", "Shards", "distribute", "from_arrays", "seed", "split_by_rank"]

TENSORFLOWS_PARALLELISM = 16
"""What TensorFlow begins a stage with that is given as AUTOTUNE; fewer where there are fewer processors."""
_SEED_STRIDE = 1_000_003

afterwards.look_after()
arrays.take_over()


def distribute(
    dataset: tf.data.Dataset,
    *,
    compression: str = "none",
    sharding: str = "dynamic",
    shared: bool = True,
    coordinated: bool = False,
    cross_trainer_cache: str = "",
    data_transfer_protocol: str = "auto",
    target_workers: str = "any",
    max_outstanding_requests: int | None = None,
    deterministic: bool | None = None,
    uneven: str = "pad",
    exact: bool = True,
    job_name: str = "train",
) -> tf.data.Dataset:
    """The same dataset, made by the job's tf.data workers and shared by all ranks; every rank must call it.

    With `shared=False` each rank has all of its own dataset instead; `exact=False` gives up what the next paragraph
    promises.

    What it accepts means what it means in plain tf.data: over an epoch all ranks together get the same elements, pairs
    and batches of pairs intact, each as often. Their order, fresh random draws and where batches are cut may differ.
    What cannot be kept is refused here, with the script's line and the fix. In local mode each rank makes its part
    of the dataset itself, under the same promise.

    A dataset that ends does so for all ranks after the same number of batches (`uneven`). Where that number follows
    from the dataset's size, `len` of the result is this rank's.

    Put it after `batch` and before the cast to float: what crosses the wire should be small. Do not shard `dataset`
    by rank.

    Args:
        dataset: batches, as the workers are to make them.
        job_name: which stream this is, for messages and logs. Each call has a stream of its own: where a name is taken,
            a number is added.
        others: see `Distribution`.

    Raises:
        InputError: an unknown choice, choices that exclude each other, or a dataset that cannot be made elsewhere, or
            not in parts; the text says what to change.
    """
    how = Distribution(
        compression=compression,
        sharding=sharding,
        shared=shared,
        coordinated=coordinated,
        cross_trainer_cache=cross_trainer_cache,
        data_transfer_protocol=data_transfer_protocol,
        target_workers=target_workers,
        max_outstanding_requests=max_outstanding_requests,
        deterministic=deterministic,
        uneven=uneven,
        exact=exact,
    )
    refusals.refuse_other_kinds(dataset)
    collectives.refuse_several_devices()
    job_name = reader.own_name(job_name)
    context = TrainerContext.from_environ(os.environ)
    if target_workers == "local" and context.local_workers == "off":
        raise InputError("target_workers='local' finds no worker in a job with --local_workers off")
    if deterministic is not None:
        options = tf.data.Options()
        options.deterministic = deterministic
        dataset = dataset.with_options(options)
    keep_freed_memory()
    rank_meter.note(dataset.element_spec)
    if context.tf_data_mode == "local":
        return _on_trainer(split.on_this_rank(dataset, how, job_name), shared=shared)
    refusals.refuse_elements(dataset)
    prepared = split.prepare(dataset, how, job_name)
    if compression == "auto":
        uncompressed = reader.protocol(how.data_transfer_protocol, "none", context, dataset.element_spec)
        stream_name = f"{context.job_name}-{job_name}"
        chosen = choose_compression(dataset, f"grpc://{context.dispatcher}", stream_name, uncompressed)
        how = replace(how, compression=chosen)
    own, streams = prepared.share is not None or not shared, []
    numbers = split.register(prepared.datasets, f"grpc://{context.dispatcher}", COMPRESSIONS[how.compression], own)
    for order, number in enumerate(numbers):
        name, spec = f"{job_name}-order-{order}" if order else job_name, dataset.element_spec
        streams.append(reader.read(number, name, spec, how, context, endless=prepared.endless, own=own))
    stream = in_turn(streams)
    if prepared.endless:
        stream = stream.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    elif prepared.share:
        stream = with_steps(stream, prepared.share.steps(uneven))
    else:
        stream = end_together(stream, uneven, job_name)
    return _on_trainer(refuse_changes(dataset, stream), shared=shared)


def split_by_rank(dataset: tf.data.Dataset, *, uneven: str = "keep", name: str = "held_out") -> tf.data.Dataset:
    """This rank's part of a dataset that every rank reads itself, in both modes: for a small held-out set, say.

    The same promise as `distribute`'s. With `uneven="keep"` ranks may have unequal numbers of batches:
    `MetricAverageCallback` adds metrics up exactly all the same.

    Raises:
        InputError: it cannot be read in parts; the text says what to change.
    """
    refusals.refuse_other_kinds(dataset)
    return _on_trainer(split.of_this_rank(dataset, Distribution(uneven=uneven).uneven, name), stream=False)


def seed(base: int, epoch: int = 0, rank: int = 0) -> int:
    """A seed for this epoch and rank: never the same for two of them, always the same for the same ones."""
    return (base * _SEED_STRIDE + epoch) * _SEED_STRIDE + rank & 0x7FFF_FFFF_FFFF_FFFF


def _on_trainer(dataset: tf.data.Dataset, *, stream: bool = True, shared: bool = True) -> tf.data.Dataset:
    """Return the dataset without tf.data's autotuning thread, which can sleep up to a minute when an iterator ends.

    See docs/tensorflow-autotune.md. A stage that is given as AUTOTUNE then keeps the parallelism that it begins with:
    this rank's share of the host's processors, so that a host of many uses them all, and TensorFlow's own at least.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    own = dataset.options().autotune.initial_parallelism
    options.autotune.initial_parallelism = own or max(collectives.processors(), TENSORFLOWS_PARALLELISM)
    return afterwards.given_out(dataset.with_options(options), stream=stream, shared=shared)
