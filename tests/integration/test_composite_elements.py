"""Sparse, ragged and dataset elements are split without loss or repeats, at whatever stage a pipeline makes them."""

import os

import pytest
import tensorflow as tf
from headrace.tensorflow import data
from headrace.tensorflow.ranks import collectives

from tests.integration.service import consumers, service

Dataset = tf.data.Dataset
ELEMENTS = 40


def sparse(number):
    return tf.sparse.from_dense(tf.one_hot(number % 5, 5, dtype=tf.int64) * (number + 1))


def ragged(number):
    return tf.RaggedTensor.from_row_lengths(tf.fill([number % 3 + 1], number + 1), [1, number % 3])


def both(number):
    return {"sparse": sparse(number), "ragged": ragged(number), "number": number, "text": tf.strings.as_string(number)}


def numbers():
    return Dataset.range(ELEMENTS)


def three_of_each(element):
    return Dataset.from_tensors(element).repeat(3)


def by_rows(element):
    return tf.cast(element.nrows(), tf.int64)


PIPELINES = {
    "sparse, batched": lambda: numbers().map(sparse).batch(4),
    "sparse, interleaved": lambda: numbers().map(sparse).interleave(three_of_each).batch(4),
    "sparse, interleaved in parallel": lambda: (
        numbers().map(sparse).interleave(three_of_each, num_parallel_calls=2, deterministic=False).batch(4)
    ),
    "sparse, made by the interleave": lambda: numbers().interleave(lambda n: three_of_each(n).map(sparse)).batch(4),
    "sparse, flat_map": lambda: numbers().map(sparse).flat_map(three_of_each).batch(4),
    "sparse batches, interleaved": lambda: numbers().map(sparse).batch(4).interleave(three_of_each),
    "sparse batches, taken apart": lambda: numbers().map(sparse).batch(4).unbatch().batch(3),
    "sparse, shuffled and repeated": lambda: (
        numbers().map(sparse).shuffle(8).repeat(2).interleave(three_of_each).batch(4)
    ),
    "sparse, by number": lambda: numbers().map(sparse).enumerate().map(lambda n, each: each).take(30).batch(4),
    "sparse, grouped": lambda: (
        numbers()
        .map(sparse)
        .group_by_window(lambda each: each.indices[0, 0], lambda _, group: group.batch(4), window_size=4)
    ),
    "sparse, by length, without padding": lambda: (
        numbers()
        .map(lambda n: tf.sparse.from_dense(tf.ones([n % 7 + 1], tf.int64) * (n + 1)))
        .bucket_by_sequence_length(lambda each: tf.shape(each.indices)[0], [3, 5], [4, 4, 4], no_padding=True)
    ),
    "sparse, filtered and cached": lambda: (
        numbers().map(sparse).filter(lambda each: each.values[0] % 3 > 0).cache().interleave(three_of_each).batch(4)
    ),
    "ragged, interleaved": lambda: numbers().map(ragged).interleave(three_of_each).ragged_batch(4),
    "ragged, grouped": lambda: (
        numbers().map(ragged).group_by_window(by_rows, lambda _, group: group.ragged_batch(4), window_size=4)
    ),
    "ragged by ragged_batch, interleaved": lambda: (
        numbers().map(lambda n: tf.range(n % 4)).ragged_batch(4).interleave(three_of_each)
    ),
    "lists, padded, then sparse": lambda: (
        numbers()
        .map(lambda n: tf.fill([n % 4 + 1], n))
        .padded_batch(4)
        .map(tf.sparse.from_dense)
        .interleave(three_of_each)
    ),
    "of all kinds, interleaved": lambda: numbers().map(both).interleave(three_of_each).batch(4),
    "of all kinds, joined": lambda: numbers().map(both).concatenate(numbers().map(both)).batch(4),
    "windows, interleaved": lambda: numbers().window(4).interleave(lambda window: window.batch(4)),
    "windows of sparse, flat_map": lambda: numbers().map(sparse).window(4).flat_map(lambda window: window.batch(2)),
    "optionals, interleaved": lambda: (
        numbers()
        .map(lambda n: tf.experimental.Optional.from_value(n))
        .interleave(three_of_each)
        .map(lambda each: each.get_value())
        .batch(4)
    ),
}


def rows(dataset):
    """Return the rows of all batches of a dataset, in a form that can be compared."""
    found = []
    for batch in dataset:
        parts = [part_of(each) for each in tf.nest.flatten(batch)]
        found += zip(*parts, strict=True)
    return sorted(found, key=repr)


def part_of(batch):
    if isinstance(batch, tf.SparseTensor):
        count = int(batch.dense_shape[0])
        found = [[] for _ in range(count)]
        for (row, *place), value in zip(batch.indices.numpy().tolist(), batch.values.numpy().tolist(), strict=True):
            found[row].append((*place, value))
        return [tuple(each) for each in found]
    if isinstance(batch, tf.RaggedTensor):
        return [repr(each) for each in batch.to_list()]
    return batch.numpy().tolist()


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    with service(tmp_path_factory.mktemp("service") / "work", 2) as running:
        yield running.address


@pytest.mark.parametrize("build", PIPELINES.values(), ids=PIPELINES)
def test_workers_give_what_plain_tf_data_gives(build, workers, use):
    use(workers)
    streams = consumers(2, build(), uneven="keep", job_name=os.urandom(8).hex())
    assert sorted((row for each in streams for row in rows(each)), key=repr) == rows(build())


@pytest.mark.parametrize("build", PIPELINES.values(), ids=PIPELINES)
def test_ranks_that_read_themselves_get_together_what_plain_tf_data_gives(build, monkeypatch):
    monkeypatch.setattr(collectives, "size", lambda: 2)
    monkeypatch.setattr(collectives, "of_all_ranks", lambda value, *_: [value])
    got = []
    for rank in range(2):
        monkeypatch.setattr(collectives, "rank", lambda rank=rank: rank)
        got += rows(data.split_by_rank(build()))
    assert sorted(got, key=repr) == rows(build())
