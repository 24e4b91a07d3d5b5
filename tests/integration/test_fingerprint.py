"""A dataset's fingerprint is equal on ranks with the same script, and differs for other data or another order."""

import numpy as np
import pytest
import tensorflow as tf
from headrace.tensorflow.ranks import same_dataset
from headrace.tensorflow.sharding.dataset_graph import DatasetGraph

NUMBERS = tf.data.Dataset.range(40)


def fingerprint(dataset, seeds=True):
    return same_dataset.fingerprint(DatasetGraph(dataset).sink, seeds)


def looked_up(words):
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(words, list(range(len(words)))), -1)
    return tf.data.Dataset.from_tensor_slices(["a", "b"]).map(table.lookup)


def long_way(rounds):
    dataset = NUMBERS
    for _ in range(rounds):
        dataset = dataset.concatenate(NUMBERS)
    return dataset


def with_python():
    return NUMBERS.map(lambda n: tf.numpy_function(lambda x: x + 1, [n], tf.int64))


def from_variable(value):
    variable = tf.Variable(value)
    return NUMBERS.map(lambda n: n + variable)


SAME = {
    "a shuffle": lambda: NUMBERS.shuffle(9).batch(4),
    "a lookup table": lambda: looked_up([f"word {n}" for n in range(100)]),
    "a Python function": with_python,
    "a cache": lambda: NUMBERS.cache().repeat(),
    "a condition": lambda: NUMBERS.map(lambda n: tf.cond(n > 3, lambda: n, lambda: n * 2)),
    "a loop": lambda: NUMBERS.map(lambda n: tf.while_loop(lambda i: i < 9, lambda i: [i + 1], [n])[0]),
    "a state of its own": lambda: from_variable(np.random.default_rng().integers(100)),
    "three hundred transformations": lambda: long_way(300),
    "interleaved files": lambda: tf.data.Dataset.from_tensor_slices(["a", "b"]).interleave(tf.data.TextLineDataset),
}
DIFFERENT = {
    "take and skip the other way round": lambda way: NUMBERS.take(10).skip(5) if way else NUMBERS.skip(5).take(10),
    "other numbers in a function": lambda way: NUMBERS.map(lambda n: n * 2 + 3 if way else n * 3 + 2),
    "zipped the other way round": lambda way: tf.data.Dataset.zip(
        (NUMBERS, NUMBERS.skip(1))[:: 1 if way else -1]),
    "another part of a list": lambda way: tf.data.Dataset.from_tensor_slices([1, 2, 3, 4][way::2]),
    "other text": lambda way: tf.data.Dataset.from_tensor_slices(["a", "b" if way else "c"]),
    "another ragged tensor": lambda way: tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1], [2, 3 + way]])),
    "another vocabulary": lambda way: looked_up(["a", "b", "c"] if way else ["c", "b", "a"]),
    "another seed of a shuffle": lambda way: NUMBERS.shuffle(9, seed=1 + way),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_the_same_dataset_made_twice_has_one_fingerprint(name):
    assert fingerprint(SAME[name]()) == fingerprint(SAME[name]())


@pytest.mark.parametrize("name", DIFFERENT)
def test_another_dataset_has_another_fingerprint(name):
    assert fingerprint(DIFFERENT[name](0)) != fingerprint(DIFFERENT[name](1))


@pytest.fixture
def seeded():
    yield tf.random.set_seed
    tf.random.set_seed(None)


def drawn():
    mixed = tf.data.Dataset.sample_from_datasets([NUMBERS, NUMBERS.skip(3)])
    return mixed.shuffle(9).map(lambda n: tf.random.uniform([]) + tf.cast(n, tf.float32))


def test_seeds_can_be_left_out(seeded):
    seeded(1)
    one = drawn()
    seeded(2)
    other = drawn()
    assert fingerprint(one, seeds=False) == fingerprint(other, seeds=False)
    assert fingerprint(one) != fingerprint(other)
