"""Read the workers' batches on a rank: name the stream, choose the transfer protocol, and request batches ahead."""

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

REQUESTS = 8
"""Batches that a rank requests ahead. TensorFlow's autotuning would choose this number; it is off here."""
FEW_REQUESTS = 2
"""Batches to request ahead from a finite shared stream. With more, one rank could take most of a short stream."""
ASK_FOR_END_EVERY_MS = 100
"""Milliseconds after which a rank asks the dispatcher again whether a finite pass is over. TensorFlow's default, 1,000,
would make each pass a second longer. Endless streams keep the default, and so send only a tenth of the requests."""
_given: collections.Counter[str] = collections.Counter()


def own_name(name: str) -> str:
    """Return `name`, with a number added if another dataset of this process has that name already.

    Workers tell streams apart by name. Ranks distribute the same datasets in the same order, so their names agree.
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
    """Return the batches that workers make from a dataset, which the dispatcher knows by the id `number`.

    Args:
        own: True if the stream is for this rank alone; False if ranks share it.
    """
    carried = protocol(how.data_transfer_protocol, how.compression, context, spec)
    if carried == transfer.PROTOCOL:
        rank_meter.count_transferred()
    ahead = how.max_outstanding_requests
    if not ahead and not how.coordinated:
        ahead = REQUESTS if endless or own else FEW_REQUESTS
    return compat.registered_dataset(
        processing_mode=tf.data.experimental.service.ShardingPolicy[how.sharding.upper()],
        service=f"grpc://{context.dispatcher}",
        dataset_id=number,
        element_spec=spec,
        job_name=f"{context.job_name}-{job_name}" + (f"-rank{collectives.rank()}" if own else ""),
        consumer_index=collectives.rank() if how.coordinated else None,
        num_consumers=collectives.size() if how.coordinated else None,
        max_outstanding_requests=ahead,
        task_refresh_interval_hint_ms=None if endless else ASK_FOR_END_EVERY_MS,
        data_transfer_protocol=carried,
        target_workers="ANY",
    )


def _transfer_takes(spec: object) -> bool:
    """Return whether headrace's transfer library can send elements of this spec: dense, ragged or sparse tensors."""
    kinds = (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec)
    return all(isinstance(each, kinds) and each.dtype != tf.variant for each in tf.nest.flatten(spec))


def protocol(asked: str, compression: str, context: TrainerContext, spec: object) -> str | None:
    """Return the transfer protocol to pass to TensorFlow; None lets it choose. Only gRPC carries compressed batches."""
    if asked == GRPC or compression != "none" or (asked == "auto" and not _transfer_takes(spec)):
        return None if asked == "auto" else asked
    loaded = transfer.load()
    if asked == transfer.PROTOCOL and not loaded:
        raise InputError(
            f"data_transfer_protocol={asked!r} is not built: run python -m headrace.tensorflow.service.transfer.build, "
            "or leave it at 'auto'"
        )
    timeout_s = float(os.environ.get(STARTUP_TIMEOUT_VARIABLE) or 900)
    if loaded and context.protocol_file:
        loaded = transfer.agreed_protocol(Path(context.protocol_file), timeout_s) == transfer.PROTOCOL
    if asked == transfer.PROTOCOL and not loaded:
        raise InputError(f"some workers lack data_transfer_protocol={asked!r}: leave it at 'auto'")
    return transfer.PROTOCOL if loaded else None
