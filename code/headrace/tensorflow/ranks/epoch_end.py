"""End a stream of batches on all ranks after the same number of batches.

A rank that made one step more than another would wait in an allreduce forever. If the number of batches is known,
`with_steps` gives all ranks the same number without messages. The number is unknown after a filter, or for records in
files. Then each rank tells rank 0 how many batches it has had, and rank 0 tells all where to end (`epoch_count.py`,
`messages.py`). With `uneven="pad"`, a rank with no batch left waits for the others. Each rank delays its second batch
until all ranks have a batch, for at most `FIRST_PATIENCE_S`. Otherwise a fast rank could take all batches of a short
stream. All waiting is in TensorFlow operations. No stream calls Python, since Python could not exit during such a call.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from typing import Any

import tensorflow as tf

from headrace.tensorflow import compat
from headrace.tensorflow.ranks import collectives
from headrace.tensorflow.ranks.epoch_count import ALL_ENDED, ENDED, SOME_ENDED, STARTED, EpochCounter, Numbers
from headrace.tensorflow.ranks.messages import Link

STOP_S = 2.0
"""Limit in seconds. At exit, Python waits for the thread that sends to rank 0, since it may be calling TensorFlow."""
_STREAMS = 1 << 32
"""Factor in a key of `_Rank.known`: stream number × factor + epoch number. Epoch numbers must be below the factor."""


def with_steps(stream: tf.data.Dataset, steps: int, own: int = 0) -> tf.data.Dataset:
    """Return the stream's first `steps` batches as a dataset of known size. A short stream repeats its last batch.

    Args:
        own: number of batches in the stream; 0: unknown. If it is known, all batches are read, to fill any `cache`.
    """
    if own >= steps:
        first = stream.enumerate().filter(lambda at, _: at < steps).map(lambda _, batch: batch)
        return (stream if own == steps else first).apply(tf.data.experimental.assert_cardinality(steps))
    kept, spec = _with_last(stream), stream.element_spec
    return kept.take(steps).map(lambda _, __, batch: _value(batch, spec))


def end_together(stream: tf.data.Dataset, uneven: str, name: str) -> tf.data.Dataset:
    """Return the stream, but let it end on all ranks after the same number of batches. Every rank must call this.

    Args:
        stream: this rank's batches.
        uneven: `pad`: end with the longest stream; a rank that has no batch left repeats its last one. `drop`: end with
            the shortest stream. `keep`: end each rank's stream by itself.
        name: the name of the stream in messages.
    """
    if uneven == "keep" or collectives.size() == 1:
        return stream
    if not _rank:
        _rank.append(_Rank())
    ours, spec = _rank[0].open(name, uneven), stream.element_spec

    @tf.autograph.experimental.do_not_convert
    def one_epoch(number: tf.Tensor) -> tf.data.Dataset:
        allowed = _with_last(stream).take_while(lambda at, here, _: ours.goes_on(number, at, here))
        return allowed.map(lambda at, here, batch: _value(batch, spec))

    return ours.epochs().flat_map(one_epoch)


def _with_last(stream: tf.data.Dataset) -> tf.data.Dataset:
    """Return an endless dataset: (index, True, batch) for each batch, and then (index, False, last batch) for ever."""
    spec = stream.element_spec

    def wrapped(*batch: Any) -> tf.Tensor:
        return compat.variant_of(tf.experimental.Optional.from_value(batch if isinstance(spec, tuple) else batch[0]))

    def keep_last(last: tf.Tensor, numbered: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, Any]:
        number, batch = numbered
        here = tf.raw_ops.OptionalHasValue(optional=batch)
        latest = tf.cond(here, lambda: batch, lambda: last)
        return latest, (number, here, latest)

    rest = tf.data.Dataset.from_tensors(0).repeat().map(lambda _: tf.raw_ops.OptionalNone())
    return stream.map(wrapped).concatenate(rest).enumerate().scan(tf.raw_ops.OptionalNone(), keep_last)


def _value(batch: tf.Tensor, spec: Any) -> Any:
    return compat.optional_of(batch, spec).get_value()


class _Rank:
    """Exchanges messages with rank 0 about this rank's streams, in two threads. No tf.data thread calls this class."""

    def __init__(self) -> None:
        with tf.device("CPU:0"):
            self.outbox = tf.queue.FIFOQueue(-1, [tf.int64], [[4]])
            self.known = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, [0, 0])
            """For each stream and epoch, the limit (in batches) and flags (`ALL_ENDED`, …) that rank 0 sent."""
            self.alone = tf.Variable(False, trainable=False)
            """True once rank 0's script has ended: no rank gets messages any more."""
        self._streams: list[_Stream] = []
        self._names: list[tuple[str, str]] = []
        self._link = Link(EpochCounter(collectives.size(), self._names).hear, self._hear)
        self._sends = threading.Thread(target=self._send, name="ends of epochs", daemon=True)
        self._sends.start()
        atexit.register(self._close)

    def open(self, name: str, uneven: str) -> _Stream:
        """Return a new stream. Its epochs end where the ranks agree."""
        self._names.append((name, uneven))
        self._streams.append(_Stream(self, len(self._streams), name, uneven))
        return self._streams[-1]

    def _send(self) -> None:
        while (message := tuple(self.outbox.dequeue().numpy().tolist())) != _STOP:
            self._link.tell(message)

    def _hear(self, numbers: Numbers | None) -> None:
        if numbers is None:
            self.alone.assign(True)
            for each in self._streams.copy():
                each.wake()
            return
        number, epoch, limit, flags = numbers
        self.known.insert(tf.constant(number * _STREAMS + epoch, tf.int64), tf.constant([limit, flags], tf.int64))
        if number < len(self._streams):
            stream = self._streams[number]
            stream.wake()
            of_epoch, batches = stream.mine.numpy().tolist()
            if flags & SOME_ENDED and of_epoch == epoch and batches:  # rank 0 may not know of batches before the flag
                self._link.tell((number, epoch, batches, 0))

    def _close(self) -> None:
        """End all waiting when Python exits. Horovod and MPI shut down only later, and then wait for other ranks."""
        self._link.close()
        self.outbox.enqueue(tf.constant(_STOP, tf.int64))
        self._sends.join(STOP_S)
        for each in self._streams:
            each.close()


_STOP = (-1, -1, -1, -1)
_rank: list[_Rank] = []


class _Stream:
    """The TensorFlow operations that decide, in this rank's graphs, where a stream's epochs end."""

    def __init__(self, rank: _Rank, place: int, name: str, uneven: str) -> None:
        self._rank, self._place, self._name, self._uneven = rank, place, name, uneven
        with tf.device("CPU:0"):
            self._begun = tf.Variable(0, dtype=tf.int64, trainable=False)
            """The number of epochs that have begun."""
            self.mine = tf.Variable([0, 0], dtype=tf.int64, trainable=False)
            """The newest epoch's number, and how many of its batches this rank has had."""
            self._news = tf.queue.FIFOQueue(-1, [tf.bool], [[]])
            self._true = tf.constant(True)

    def wake(self) -> None:
        """Make waiting operations look at rank 0's decision again."""
        with contextlib.suppress(tf.errors.CancelledError):  # the queue is closed
            self._news.enqueue(self._true)

    def close(self) -> None:
        """End all waiting operations, as if the stream ended."""
        self._news.close(cancel_pending_enqueues=True)

    def epochs(self) -> tf.data.Dataset:
        """Return a new epoch's number as a dataset. Deleting its iterator tells rank 0 that the epoch ended."""

        @tf.function(input_signature=[])
        def begin() -> tf.Tensor:
            number = tf.identity(self._begun.assign_add(1))
            with tf.control_dependencies([self.mine.assign(tf.stack([number, 0]))]):
                self._news.enqueue(self._true)  # this ends an operation that still waits in an older epoch
            return number

        @tf.function(input_signature=[tf.TensorSpec([], tf.int64)])
        def number_of(number: tf.Tensor) -> tf.Tensor:
            return tf.identity(number)

        @tf.function(input_signature=[tf.TensorSpec([], tf.int64)])
        def leave(number: tf.Tensor) -> tf.Tensor:
            self._tell(number, tf.where(self.mine[0] == number, self.mine[1], 0), ENDED)
            return tf.identity(number)

        init, following, final = (each.get_concrete_function() for each in (begin, number_of, leave))
        variant = tf.raw_ops.GeneratorDataset(
            init_func_other_args=init.captured_inputs,
            next_func_other_args=following.captured_inputs,
            finalize_func_other_args=final.captured_inputs,
            init_func=init,
            next_func=following,
            finalize_func=final,
            output_types=[tf.int64],
            output_shapes=[[]],
        )
        self._keep = init, following, final
        return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.int64)).take(1)

    def goes_on(self, number: tf.Tensor, at: tf.Tensor, here: tf.Tensor) -> tf.Tensor:
        """Return whether the epoch continues with batch `at`; wait until this is decided."""
        second = (
            f"a second iterator over {self._name} has begun, so the first one cannot go on: a distributed dataset has "
            "one iterator at a time. To read it a second time, call data.distribute once more"
        )
        tf.debugging.Assert(self._begun == number, [second])
        go_on = tf.cond(here, lambda: self._has(number, at), lambda: self._has_none(number, at))
        go_on.set_shape([])
        return go_on

    def _has(self, number: tf.Tensor, at: tf.Tensor) -> tf.Tensor:
        mine = self.mine.assign(tf.stack([number, at + 1]))
        if self._uneven == "drop":
            self._tell(number, at + 1, 0)
            limit, _ = self._wait(number, lambda limit, flags: tf.logical_or(limit > at, flags & ALL_ENDED > 0))
            return tf.logical_or(limit > at, self._rank.alone)
        with tf.control_dependencies([mine]):  # if the flag comes after `_look`, `_Rank` tells rank 0 of this batch
            tell = tf.logical_or(at == 0, self._look(number)[1] & SOME_ENDED > 0)
        tf.cond(tell, lambda: self._tell(number, at + 1, 0), lambda: tf.constant(False))
        tf.cond(at == 1, lambda: self._wait(number, lambda _, flags: flags & STARTED > 0), lambda: self._look(number))
        return tf.constant(True)

    def _has_none(self, number: tf.Tensor, at: tf.Tensor) -> tf.Tensor:
        is_first = self.mine[1] == at
        tf.cond(is_first, lambda: self._tell(number, at, ENDED), lambda: tf.constant(False))
        if self._uneven == "drop":
            return tf.constant(False)
        no_batch = (
            f"rank {collectives.rank()} got no batch of {self._name}: it is empty, or other ranks took all batches; "
            "make batches smaller, use fewer ranks, or let each rank read its own part with data.split_by_rank"
        )
        tf.debugging.Assert(at > 0, [no_batch])
        limit, _ = self._wait(number, lambda limit, flags: tf.logical_or(limit > at, flags & ALL_ENDED > 0))
        return tf.logical_and(limit > at, self._begun == number)

    def _wait(self, number: tf.Tensor, is_decided: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Wait until `is_decided` accepts rank 0's answer, rank 0 has ended, or this rank has begun a newer epoch."""

        def undecided(limit: tf.Tensor, flags: tf.Tensor) -> tf.Tensor:
            over = tf.logical_or(self._rank.alone, self._begun > number)
            return tf.logical_not(tf.logical_or(is_decided(limit, flags), over))

        def look_again(*_: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            with tf.control_dependencies([self._news.dequeue()]):
                return self._look(number)

        return tf.while_loop(undecided, look_again, self._look(number))  # type: ignore[no-any-return]

    def _look(self, number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        known = self._rank.known.lookup(number + self._place * _STREAMS)
        return known[0], known[1]

    def _tell(self, number: tf.Tensor, batches: tf.Tensor, what: int) -> tf.Tensor:
        self._rank.outbox.enqueue(tf.stack([self._place, number, batches, what]))
        return tf.constant(True)
