"""Make endless, shuffled streams of elements that a later run can continue.

Workers get one unit (a file or a block) after another, in an order that only seed and epoch decide. An element's tag
has two numbers: its unit's position in this order, and its position in the unit. A ledger records trained elements.
"""

from __future__ import annotations

import collections
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from headrace.errors import InputError
from headrace.events import say
from headrace.tensorflow.keras.model_checkpoint import Checkpoint
from headrace.tensorflow.ranks import collectives
from headrace.tensorflow.ranks.same_dataset import fingerprint
from headrace.tensorflow.sharding.dataset_graph import DatasetGraph
from headrace.tensorflow.sharding.refusals import AS_IT_IS
from headrace.tensorflow.sharding.slicing import block_of
from headrace.tensorflow.sharding.sources import count_records
from headrace.tensorflow.sharding.split_points import as_listing
from headrace.training.ledger import PLACE_BITS, Ledger

AUTOTUNE = tf.data.AUTOTUNE
BLOCK = 256
"""Number of elements that a worker gets at once. Asking the dispatcher for a block takes a third of a millisecond."""
BATCHES_WITHOUT_A_STEP = 10_000
"""Limit on received batches that no step has used. Beyond this limit, an error asks for the callback `Checkpoint`."""
GATHER_EVERY = 50
"""Steps after which ranks exchange what they consumed. A checkpoint in between may lack other ranks' last steps."""
Reader = Callable[[tf.Tensor, tf.Tensor], tf.data.Dataset]
"""Function that returns a unit (file or block) as a dataset of `(tag, element)`, given its number and first tag."""
_END = np.iinfo(np.int64).max >> PLACE_BITS


class TaggedDataset:
    """A dataset from `Shards`, for `data.distribute`. Each element has a tag, but functions of `map` do not get it."""

    def __init__(self, shards: Shards, dataset: tf.data.Dataset) -> None:
        self.shards, self._dataset = shards, dataset

    def tagged(self) -> tf.data.Dataset:
        """Return the dataset of pairs (tag, element). After `batch`, a pair is (tags of the batch, batch)."""
        return self._dataset

    def map(self, function: Callable[..., Any], num_parallel_calls: int | None = AUTOTUNE) -> TaggedDataset:
        """Apply a function to each element or batch, as `tf.data.Dataset.map` does."""

        def beside_the_tag(tag: tf.Tensor, element: Any) -> tuple[tf.Tensor, Any]:
            return tag, function(*element) if isinstance(element, tuple) else function(element)

        return TaggedDataset(self.shards, self.tagged().map(beside_the_tag, num_parallel_calls))

    def shuffle(self, buffer_size: int, seed: int | None = None) -> TaggedDataset:
        """Shuffle in a buffer of elements, as `tf.data.Dataset.shuffle` does."""
        return TaggedDataset(self.shards, self.tagged().shuffle(buffer_size, seed))

    def batch(self, batch_size: int, drop_remainder: bool = False) -> TaggedDataset:
        """Make batches, as `tf.data.Dataset.batch` does."""
        return TaggedDataset(self.shards, self.tagged().batch(batch_size, drop_remainder))


class Shards(TaggedDataset):
    """A stream that a later run can continue. Make one with `of_files`, `of_dataset` or `of_indices`.

    `map`, `shuffle` and `batch` work as in tf.data. Pass the final stream to `data.distribute`, with the default values
    of `sharding` and `shared`: otherwise elements come several times. If an element is filtered out or lost, the
    ledger of trained elements waits for this element for two epochs or more, and then counts the element as skipped.

    Attributes:
        elements: the number of elements in an epoch.
    """

    def __init__(
        self, names: Sequence[str], counts: Sequence[int], read: Reader, seed: int, checkpoint: Checkpoint | None
    ) -> None:
        self.shards = self
        self._units, self._seed, self._read = len(counts), seed, read
        described = json.dumps([list(names), list(map(int, counts)), seed])
        self._what = hashlib.sha256(described.encode()).hexdigest()[:16]
        self.elements = int(sum(counts))
        self.ledger = Ledger(counts, self._order)
        self._arrived: collections.deque[NDArray[Any]] = collections.deque()
        self._not_gathered: list[NDArray[Any]] = []
        self._steps = self._repeated = 0
        self._restored = False
        self._tracks = checkpoint is not None
        if checkpoint:
            saved = collectives.same_on_all_ranks(checkpoint.keep_stream(self))
            if saved and saved.get("what") == self._what:
                self.ledger.restore(saved)
                self._restored, self._repeated = True, int(saved["repeated"])

    @classmethod
    def of_files(
        cls,
        files: Sequence[str | Path],
        checkpoint: Checkpoint | None = None,
        seed: int = 0,
        counts: Sequence[int] | None = None,
    ) -> Shards:
        """Return a stream of the records of uncompressed TFRecord files; workers and trainer must see the same paths.

        Args:
            checkpoint: the `Checkpoint` that `fit` gets; the stream continues from the newest checkpoint it has saved.
            seed: decides the order of files, which differs between epochs.
            counts: number of records in each file, in the order of `files`. By default files are sorted, and rank 0
                counts their records by reading every record's length.

        Raises:
            InputError: there are no files, or a file is not an uncompressed TFRecord file.
        """
        if not files:
            raise InputError("there are no files to read records from; check the channel's folder and the pattern")
        if counts is None:
            files = sorted(files, key=str)  # the same order on every host and in every run
            counts = collectives.same_on_all_ranks(
                [count_records(Path(file)) for file in files] if collectives.rank() == 0 else []
            )
        if len(counts) != len(files):
            raise InputError(f"counts has {len(counts)} entries for {len(files)} files: give one for each")
        full = [(str(file), int(count)) for file, count in zip(files, counts, strict=True) if count]
        if not full:
            raise InputError(f"none of the {len(files)} files, such as {files[0]}, has a record: give other files")
        paths, names = tf.constant([path for path, _ in full]), [Path(path).name for path, _ in full]
        return cls(
            names,
            [count for _, count in full],
            lambda unit, tag: tf.data.TFRecordDataset(tf.gather(paths, unit)).enumerate(tag),
            seed,
            checkpoint,
        )

    @classmethod
    def of_indices(cls, count: int, checkpoint: Checkpoint | None = None, seed: int = 0, block: int = BLOCK) -> Shards:
        """Return a stream of the indices 0 to `count` - 1, in blocks, for a script that looks elements up by index."""
        return cls.of_dataset(tf.data.Dataset.range(count), checkpoint, seed, block)

    @classmethod
    def of_dataset(
        cls, listing: tf.data.Dataset, checkpoint: Checkpoint | None = None, seed: int = 0, block: int = BLOCK
    ) -> Shards:
        """Return a stream of the elements of a dataset with a fixed order, such as rows of a table, arrays, paths with
        labels (`zip`), or a part of such a dataset (`take`, `skip`).

        Args:
            listing: the dataset, neither batched nor repeated. Do costly work, such as decoding, in the stream's `map`.
            block: number of elements that a worker gets at once. Only the order of blocks is shuffled, so shuffle the
                stream too. Without random access, as in text files, a block has 1/32 of the elements or more.

        Raises:
            InputError: `listing` is empty, is endless or has no fixed order. Also raised if workers would make costly
                elements, or read large files, only to skip them.
        """
        graph = DatasetGraph(listing)
        try:
            count, block = as_listing(graph, block)
        except InputError as error:
            raise InputError(str(error).removesuffix(AS_IT_IS)) from None
        if count < 1 or block < 1:
            raise InputError(f"there are {count} elements, in blocks of {block}: both must be 1 or more")
        counts = [min(block, count - first) for first in range(0, count, block)]

        def read(unit: tf.Tensor, tag: tf.Tensor) -> tf.data.Dataset:
            size = tf.constant(block, tf.int64)
            return block_of(graph.sink, unit * size, size, listing.element_spec).enumerate(tag)

        return cls([f"{fingerprint(graph.sink):x} in blocks of {block}"], counts, read, seed, checkpoint)

    def tagged(self, cycle_length: int = 4) -> tf.data.Dataset:
        """Return an endless dataset of pairs `(tag, element)`. It omits elements that the ledger records as trained on.

        `noted` takes the tags off again. Every rank must call `tagged`, at the same step.

        Args:
            cycle_length: number of files or blocks that are read at once.
        """
        if self._steps and collectives.size() > 1:  # only rank 0's ledger has what all ranks have consumed
            self.gather()
            self.ledger.restore(collectives.same_on_all_ranks(self.ledger.state(), "headrace.ledger"))
        positions = tf.data.Dataset.range(self.ledger.mark, _END)
        positions = _without(positions, self.ledger.done_positions())

        def elements(position: tf.Tensor) -> tf.data.Dataset:
            unit = self._shuffled(position % self._units, position // self._units)
            return self._read(unit, position * (1 << PLACE_BITS))

        stream = positions.interleave(elements, cycle_length, num_parallel_calls=AUTOTUNE)
        endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
        return _without(stream, self.ledger.done_tags()).apply(endless)

    def noted(self, tags: tf.Tensor, element: Any) -> Any:
        """Return a received element or batch unchanged. Keep its tags until the step that trains on it is counted."""
        noted = [tf.numpy_function(self._arrive, [tags], [], stateful=True)] if self._tracks else []
        with tf.control_dependencies(noted):
            return tf.nest.map_structure(tf.identity, element)

    def start(self) -> None:
        """Forget the batches that earlier iterators read ahead, since no step trained on them."""
        self._arrived.clear()

    def consumed(self, batches: int) -> None:
        """Record that this rank has trained on the next `batches` batches, in the order in which they arrived."""
        for _ in range(min(batches, len(self._arrived))):
            self._not_gathered.append(self._arrived.popleft())
        before, self._steps = self._steps, self._steps + batches
        if self._steps // GATHER_EVERY != before // GATHER_EVERY:
            self.gather()

    def gather(self) -> None:
        """Tell rank 0's ledger what each rank has consumed. Every rank must call this at the same step."""
        mine = np.concatenate([np.zeros(0, np.int64), *self._not_gathered])
        everyones = hvd.allgather(tf.constant(mine), name="headrace.ledger").numpy() if collectives.size() > 1 else mine
        self._not_gathered = []
        if collectives.rank() == 0:
            self.ledger.add(everyones)

    def state(self) -> dict[str, Any]:
        """Return the ledger to save. Its `repeated` estimates how many elements other ranks consumed since `gather`."""
        unknown = sum(map(len, self._not_gathered)) * (collectives.size() - 1)
        self.ledger.add(np.concatenate([np.zeros(0, np.int64), *self._not_gathered]))
        return {"what": self._what, "repeated": unknown, **self.ledger.state()}

    def report(self) -> None:
        """Log where the stream continues after a restart."""
        if not self._restored:
            say("data_restarted", reason="the-checkpoint-has-no-ledger-of-these-data-with-this-seed")
            return
        ledger = self.ledger
        say(
            "data_resumed",
            position=ledger.mark,
            epoch=ledger.mark // self._units,
            left_out=ledger.begun_elements,
            repeated_at_most=self._repeated,
            skipped=ledger.skipped,
        )

    def _arrive(self, tags: NDArray[Any]) -> None:
        if len(self._arrived) >= BATCHES_WITHOUT_A_STEP:
            raise InputError(
                f"{BATCHES_WITHOUT_A_STEP} batches came and no step was counted: pass Checkpoint to fit() as a callback"
            )
        self._arrived.append(np.atleast_1d(tags).astype(np.int64))

    def _order(self, epoch: int) -> NDArray[Any]:
        return self._shuffled(tf.range(self._units, dtype=tf.int64), tf.constant(epoch, tf.int64)).numpy()

    def _shuffled(self, places: tf.Tensor, epoch: tf.Tensor) -> tf.Tensor:
        seed = tf.stack([tf.constant(self._seed, tf.int64), epoch])
        last = tf.constant(self._units - 1, tf.int64)
        return tf.random.experimental.index_shuffle(places, seed=seed, max_index=last)


def _without(dataset: tf.data.Dataset, numbers: NDArray[Any]) -> tf.data.Dataset:
    """Remove the elements whose number is in the sorted `numbers`. An element is a number, or a tuple (number, …)."""
    if not len(numbers):
        return dataset
    left_out = tf.constant(numbers, tf.int64)

    def keep(number: tf.Tensor, *_: Any) -> tf.Tensor:
        place = tf.searchsorted(left_out, number[None])[0]
        return tf.logical_or(place >= len(numbers), tf.gather(left_out, tf.minimum(place, len(numbers) - 1)) != number)

    return dataset.filter(keep)
