"""`compression="auto"`: whether snappy would pay on this link with this data, measured on the first batches."""

from __future__ import annotations

import os
import time

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from headrace.events import format_event

PROBED_BATCHES = 8
WORTH = 0.8
"""Compress only where it takes less than this share of the time: it also takes the trainer's processor."""


def choose_compression(dataset: tf.data.Dataset, service: str, stream: str, protocol: str | None) -> str:
    """`snappy` or `none`, the same on all ranks; rank 0 measures a few batches and logs what it found.

    `protocol` is the data transfer protocol that uncompressed batches would take.

    The time of a batch uncompressed, as it arrives, is an upper bound for the link's; with compression
    it would take the largest of compressing it, of sending the smaller one, and of unpacking it.
    """
    choice = 0
    if hvd.rank() == 0:
        try:
            choice = int(_measure(dataset, service, f"{stream}-probe-{os.getpid()}-{time.time_ns()}", protocol))
        except tf.errors.OpError as error:  # which training will show, on all ranks
            print(f"compression was not measured: {' '.join(error.message.split())[:300]}", flush=True)
    if hvd.size() > 1:
        choice = int(hvd.broadcast(tf.constant(choice), 0, name=f"headrace.compression.{stream}"))
    return "snappy" if choice else "none"


def _measure(dataset: tf.data.Dataset, service: str, stream: str, protocol: str | None) -> bool:
    from tensorflow.python.data.experimental.ops import compression_ops

    probe = tf.data.experimental.service.distribute(
        tf.data.experimental.service.ShardingPolicy.OFF, service, job_name=stream, compression=None,
        data_transfer_protocol=protocol,
    )  # fmt: skip
    arrivals, batches = [time.perf_counter()], []
    for batch in dataset.take(PROBED_BATCHES).apply(probe).take(PROBED_BATCHES):
        arrivals.append(time.perf_counter())
        batches = [batch]
    if not batches:
        return False
    sent_s = float(np.median(np.diff(arrivals)[1:] if len(arrivals) > 2 else np.diff(arrivals)))
    compressed, pack_s = _timed(lambda: compression_ops.compress(batches[0]))
    spec = dataset.element_spec
    _, unpack_s = _timed(lambda: compression_ops.uncompress(compressed, spec))
    plain_bytes = sum(_bytes(each) for each in tf.nest.flatten(batches[0]))
    packed_bytes = len(tf.io.serialize_tensor(compressed).numpy())
    ratio = packed_bytes / max(plain_bytes, 1)
    expected_s = max(pack_s, sent_s * ratio, unpack_s)
    worth = expected_s < WORTH * sent_s
    print(
        format_event(
            "compression", chosen="snappy" if worth else "none", batch_bytes=plain_bytes, ratio=ratio,
            uncompressed_ms=sent_s * 1000, compressed_ms=expected_s * 1000,
        ),
        flush=True,
    )  # fmt: skip
    return worth


def _timed(call: object) -> tuple[tf.Tensor, float]:
    call()  # type: ignore[operator]  # the first call traces
    started = time.perf_counter()
    result = call()  # type: ignore[operator]
    return result, time.perf_counter() - started


def _bytes(value: tf.Tensor) -> int:
    if value.dtype == tf.string:
        return int(tf.reduce_sum(tf.strings.length(value)))
    return int(tf.size(value)) * int(value.dtype.size)
