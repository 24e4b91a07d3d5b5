"""The data path: one line that has the data service make a dataset's batches.

The order that suits it: shuffle → repeat → map → batch → distribute → cast on the trainer → prefetch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import horovod.tensorflow as hvd
import tensorflow as tf

from headrace.context import TrainerContext
from headrace.errors import InputError
from headrace.tensorflow import checks, transfer
from headrace.tensorflow.compression import choose_compression
from headrace.tensorflow.memory import keep_freed_memory
from headrace.tensorflow.shards import Shards

__all__ = ["Distribution", "Shards", "distribute", "seed"]

COMPRESSIONS = {"none": None, "snappy": "SNAPPY"}
SHARDINGS = ("dynamic", "file", "off")
PROTOCOLS = ("auto", transfer.PROTOCOL, "grpc")
TARGET_WORKERS = ("any", "local", "auto")
_SEED_STRIDE = 1_000_003


@dataclass(frozen=True)
class Distribution:
    """How a dataset is spread over the workers; every choice, with the default that suits a cluster network."""

    compression: str = "none"
    """`none`: on a cluster network snappy costs more than it saves; `snappy`; `auto`: measured before training."""
    sharding: str = "dynamic"
    """`dynamic`: the workers split the elements, each is made once; `file`: the workers split the files, which
    the dataset must read itself; `off`: each worker makes the whole dataset, so repeat it and shuffle it."""
    shared: bool = True
    """All ranks draw from one stream and split it. False: each rank has a stream of its own."""
    coordinated: bool = False
    """At each step all ranks get batches of one worker's round, made alike: for variable-length data that
    is bucketed by length, so that no rank waits for another's longer batch."""
    cross_trainer_cache: str = ""
    """A name under which ranks or jobs share batches from the workers' memory instead of each having them made;
    a batch may then be seen by several, and skipped by slow ones."""
    data_transfer_protocol: str = "auto"
    """`headrace`: our own, straight from the worker's tensors into the rank's; `grpc`: TensorFlow's, half as fast;
    `auto`: ours where it is built and nothing is compressed."""
    target_workers: str = "any"
    """`any` worker; `local`: only those on the reader's own host; `auto`: TensorFlow decides."""
    max_outstanding_requests: int | None = None
    """Batches that a rank asks for ahead; None: TensorFlow's choice."""
    deterministic: bool | None = None
    """Whether parallel calls on the workers keep their order; None: as the dataset says."""

    def __post_init__(self) -> None:
        choices = (
            ("compression", self.compression, (*COMPRESSIONS, "auto")),
            ("sharding", self.sharding, SHARDINGS),
            ("data_transfer_protocol", self.data_transfer_protocol, PROTOCOLS),
            ("target_workers", self.target_workers, TARGET_WORKERS),
        )
        for name, value, allowed in choices:
            if value not in allowed:
                raise InputError(f"{name} is {value!r}; expected one of {', '.join(allowed)}")
        if self.max_outstanding_requests is not None and self.max_outstanding_requests < 1:
            raise InputError(f"max_outstanding_requests is {self.max_outstanding_requests}; expected 1 or more")
        if self.data_transfer_protocol == transfer.PROTOCOL and self.compression != "none":
            raise InputError(
                f"{transfer.PROTOCOL} sends what is not compressed: leave data_transfer_protocol at 'auto'"
            )
        if self.cross_trainer_cache and self.coordinated:
            raise InputError("cross_trainer_cache and coordinated exclude each other: a cached batch has no round")
        if self.coordinated and self.sharding == "dynamic":
            raise InputError("coordinated reads need every worker to make the whole dataset: add sharding='off'")
        if self.coordinated and not self.shared:
            raise InputError("coordinated reads are of one stream: leave shared=True")


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
    job_name: str = "train",
) -> tf.data.Dataset:
    """The same dataset, made by the job's tf.data workers; in local mode, `dataset` untouched.

    Put it after `batch` and before the cast to float: what crosses the wire should be small. By default
    all ranks share one stream and split it, so `dataset` must not be sharded by rank in service mode
    (`Shards` knows), and should be repeated.

    Args:
        dataset: batches, as the workers are to make them.
        job_name: which stream this is; a second dataset of the same script needs a second name.
        others: see `Distribution`.

    Raises:
        InputError: an unknown choice, choices that exclude each other, or a dataset that cannot be
            made on other hosts; the text says what to change.
    """
    how = Distribution(compression, sharding, shared, coordinated, cross_trainer_cache,
                       data_transfer_protocol, target_workers, max_outstanding_requests, deterministic)  # fmt: skip
    context = TrainerContext.from_environ(os.environ)
    if deterministic is not None:
        options = tf.data.Options()
        options.deterministic = deterministic
        dataset = dataset.with_options(options)
    keep_freed_memory()
    if context.tf_data_mode == "local":
        return dataset
    checks.refuse_misuse(dataset, how.sharding, how.coordinated or bool(how.cross_trainer_cache))
    if compression == "auto":
        uncompressed = _protocol(how.data_transfer_protocol, "none")
        stream = f"{context.job_name}-{job_name}"
        compression = choose_compression(dataset, f"grpc://{context.dispatcher}", stream, uncompressed)
    return dataset.apply(_transformation(how, context, compression, job_name))


def seed(base: int, epoch: int = 0, rank: int = 0) -> int:
    """A seed for this epoch and rank: never the same for two of them, always the same for the same ones."""
    return (base * _SEED_STRIDE + epoch) * _SEED_STRIDE + rank & 0x7FFF_FFFF_FFFF_FFFF


def _transformation(how: Distribution, context: TrainerContext, compression: str, job_name: str) -> object:
    service = tf.data.experimental.service
    policies = {
        "dynamic": service.ShardingPolicy.DYNAMIC,
        "file": service.ShardingPolicy.FILE,
        "off": service.ShardingPolicy.OFF,
    }
    cache = None
    if not how.cross_trainer_cache:
        stream = f"{context.job_name}-{job_name}" + ("" if how.shared else f"-rank{hvd.rank()}")
    else:
        stream = f"{how.cross_trainer_cache}-{job_name}"
        cache = service.CrossTrainerCache(trainer_id=f"{how.cross_trainer_cache}-{hvd.rank()}")
    return service.distribute(
        processing_mode=policies[how.sharding],
        service=f"grpc://{context.dispatcher}",
        job_name=stream,
        consumer_index=hvd.rank() if how.coordinated else None,
        num_consumers=hvd.size() if how.coordinated else None,
        max_outstanding_requests=how.max_outstanding_requests,
        compression=COMPRESSIONS[compression],
        data_transfer_protocol=_protocol(how.data_transfer_protocol, compression),
        cross_trainer_cache=cache,
        target_workers=how.target_workers.upper(),
    )


def _protocol(asked: str, compression: str) -> str | None:
    """What TensorFlow is told, None for its own choice. What is compressed goes its own way."""
    if asked == "auto" and compression == "none" and transfer.load():
        return transfer.PROTOCOL
    if asked == transfer.PROTOCOL and not transfer.load():
        raise InputError(
            f"data_transfer_protocol={asked!r} is not built here: python -m headrace.tensorflow.transfer.build, "
            "or leave it at 'auto'"
        )
    return None if asked == "auto" else asked
