"""How a rank reads what the workers make: names of streams, the protocol, and how many batches it asks for ahead."""

from __future__ import annotations

import collections
import os
from pathlib import Path
from typing import Any

import tensorflow as tf

from headrace.errors import InputError
from headrace.job.settings import STARTUP_TIMEOUT_VARIABLE
from headrace.rank.context import GRPC, TrainerContext
from headrace.tensorflow import compat
from headrace.tensorflow.keras import rank_meter
from headrace.tensorflow.options import Distribution
from headrace.tensorflow.ranks import collectives
from headrace.tensorflow.service import transfer
from headrace.tensorflow.service.transfer import agreed

REQUESTS = 8
"""Batches that a rank asks for ahead; what TensorFlow's autotuning comes to, which does not run here."""
FEW_REQUESTS = 2
"""The same of a stream that ranks share, and that ends: else the first to ask could have most of a short one."""
ASK_FOR_END_EVERY_MS = 100
"""How often a rank asks the dispatcher whether a pass is over; with TensorFlow's 1,000 each one took so much longer.
A stream without an end keeps those: the dispatcher then has ten times as few questions from all ranks."""
_given: collections.Counter[str] = collections.Counter()


def own_name(name: str) -> str:
    """Return this name where no dataset of this process has it yet, else with a number; the same on all ranks.

    Workers hand out one stream for a name. All ranks distribute the same datasets in the same order.
    """
    _given[name] += 1
    if _given[name] == 1:
        return name
    return own_name(f"{name}-{_given[name]}")


def read(
    number: str,
    job_name: str,
    spec: Any,
    how: Distribution,
    context: TrainerContext,
    *,
    endless: bool,
    own: bool,
) -> tf.data.Dataset:
    """Return a dataset that the dispatcher knows by this number, as the workers make it.

    Args:
        own: it is this rank's alone; else ranks share its stream.
    """
    cache = None
    if not how.cross_trainer_cache:
        stream = f"{context.job_name}-{job_name}" + (f"-rank{collectives.rank()}" if own else "")
    else:
        stream = f"{how.cross_trainer_cache}-{job_name}"
        cache = tf.data.experimental.service.CrossTrainerCache(
            trainer_id=f"{how.cross_trainer_cache}-{collectives.rank()}"
        )
    carried = protocol(how.data_transfer_protocol, how.compression, context, spec)
    if carried == transfer.PROTOCOL:
        rank_meter.count_transferred()
    ahead = how.max_outstanding_requests
    if not ahead and not how.coordinated:
        ahead = REQUESTS if endless or own else FEW_REQUESTS
    return compat.registered_dataset(
        processing_mode=_POLICIES[how.sharding],
        service=f"grpc://{context.dispatcher}",
        dataset_id=number,
        element_spec=spec,
        job_name=stream,
        consumer_index=collectives.rank() if how.coordinated else None,
        num_consumers=collectives.size() if how.coordinated else None,
        max_outstanding_requests=ahead,
        task_refresh_interval_hint_ms=None if endless else ASK_FOR_END_EVERY_MS,
        data_transfer_protocol=carried,
        cross_trainer_cache=cache,
        target_workers=how.target_workers.upper(),
    )


_POLICIES = {
    "dynamic": tf.data.experimental.service.ShardingPolicy.DYNAMIC,
    "off": tf.data.experimental.service.ShardingPolicy.OFF,
}


def _transfer_takes(spec: object) -> bool:
    """Whether batches of this structure travel by our own transfer: tensors, ragged and sparse ones."""
    kinds = (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec)
    return all(isinstance(each, kinds) and each.dtype != tf.variant for each in tf.nest.flatten(spec))


def protocol(asked: str, compression: str, context: TrainerContext, spec: object) -> str | None:
    """Return what TensorFlow is told, None for its own choice. What is compressed goes its own way."""
    if asked == GRPC or compression != "none" or (asked == "auto" and not _transfer_takes(spec)):
        return None if asked == "auto" else asked
    loaded = transfer.load()
    if asked == transfer.PROTOCOL and not loaded:
        raise InputError(
            f"data_transfer_protocol={asked!r} is not built: python -m headrace.tensorflow.service.transfer.build, "
            "or leave it at 'auto'"
        )
    timeout_s = float(os.environ.get(STARTUP_TIMEOUT_VARIABLE) or 900)
    if loaded and context.protocol_file:
        loaded = agreed.agreed_protocol(Path(context.protocol_file), timeout_s) == transfer.PROTOCOL
    if asked == transfer.PROTOCOL and not loaded:
        raise InputError(f"data_transfer_protocol={asked!r}, which not all workers have: leave it at 'auto'")
    return transfer.PROTOCOL if loaded else None
