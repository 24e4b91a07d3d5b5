"""Functions of a dataset can use lookup tables, layers, models and variables, on real workers and on ranks."""

import keras
import pytest
import tensorflow as tf
from headrace.errors import InputError
from headrace.tensorflow import data
from headrace.tensorflow.sharding import random_state
from headrace.tensorflow.sharding.dataset_graph import DatasetGraph

from tests.integration.service import consumers

WORDS = [f"word{number}" for number in range(48)]
IMAGE = tf.reshape(tf.range(64.0), [8, 8, 1])


def table():
    pairs = tf.lookup.KeyValueTensorInitializer(WORDS, tf.range(48, dtype=tf.int64))
    return tf.lookup.StaticHashTable(pairs, -1).lookup


def string_lookup():
    layer = keras.layers.StringLookup(vocabulary=WORDS, num_oov_indices=0)
    return lambda word: tf.cast(layer(word), tf.int64)


def vectorization():
    layer = keras.layers.TextVectorization(output_sequence_length=1)
    layer.adapt(WORDS)
    place = {word: number for number, word in enumerate(layer.get_vocabulary())}
    numbers = tf.constant([WORDS.index(word) if word in WORDS else -1 for word in place], tf.int64)
    return lambda word: tf.gather(numbers, layer(word))[0]


def variable():
    numbers = tf.Variable(tf.range(48, dtype=tf.int64))
    return lambda word: tf.gather(numbers, tf.strings.to_number(tf.strings.substr(word, 4, 2), tf.int32))


def model():
    dense = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])

    def number(word):
        found = tf.strings.to_number(tf.strings.substr(word, 4, 2))
        return tf.cast(dense(found[None, None])[0, 0], tf.int64)

    return number


def augmented():
    flip = keras.layers.RandomFlip(seed=1)

    def number(word):
        kept = tf.reduce_sum(flip(IMAGE, training=True)) * 0
        return tf.strings.to_number(tf.strings.substr(word, 4, 2), tf.int64) + tf.cast(kept, tf.int64)

    return number


MAKERS = [table, string_lookup, vectorization, variable, model, augmented]


def test_what_a_function_only_reads_goes_to_the_workers_with_it(use, servers):
    use(servers(2).address)
    for make in MAKERS:
        dataset = tf.data.Dataset.from_tensor_slices(WORDS).map(make()).batch(4)
        streams = consumers(1, dataset, job_name=make.__name__)
        assert sorted(n for batch in streams[0] for n in batch.numpy().tolist()) == list(range(48)), make.__name__


@pytest.mark.parametrize("make", MAKERS)
def test_ranks_read_it_themselves_too(make):
    graph = DatasetGraph(tf.data.Dataset.from_tensor_slices(WORDS).map(make()).batch(4))
    random_state.refuse_written(graph)
    assert [number for batch in graph.spliced({}) for number in batch.numpy().tolist()] == list(range(48))


def test_a_function_may_capture_a_dataset_where_blocks_are_cut(use, servers):
    doubled = tf.data.Dataset.range(1000).map(lambda n: n * 2)
    looked_up = tf.data.Dataset.range(60).map(lambda n: doubled.skip(n).take(1).get_single_element())
    use(servers(1).address)
    (stream,) = consumers(1, looked_up.take(50).batch(8), job_name="captured")
    assert sorted(int(n) for batch in stream for n in batch) == list(range(0, 100, 2))


def test_what_only_this_process_has_is_refused_with_the_line(use, servers):
    table = tf.lookup.experimental.DenseHashTable(tf.int64, tf.int64, -1, -5, -6)
    numbers = iter(tf.data.Dataset.range(1000))
    use(servers(1).address)
    for number, function in enumerate((table.lookup, lambda n: n + next(numbers))):
        with pytest.raises(InputError, match=r"variables.py:\d+: map\(.+\): its function uses an object that"):
            data.distribute(tf.data.Dataset.range(8).map(function).batch(4), job_name=f"own-{number}")


def test_a_variable_has_the_value_that_it_had_at_the_call(use, servers):
    stage = tf.Variable(1, dtype=tf.int64)
    dataset = tf.data.Dataset.range(20).map(lambda number: number * stage).batch(2)
    use(servers(1).address)
    (before,) = consumers(1, dataset, job_name="before")
    stage.assign(2)
    (after,) = consumers(1, dataset, job_name="after")
    for stream, factor in ((before, 1), (after, 2)):
        assert sorted(int(n) for batch in stream for n in batch) == list(range(0, 20 * factor, factor))


def test_variables_of_two_datasets_are_two():
    ten, twenty = (tf.Variable(start, dtype=tf.int64) for start in (10, 20))
    first, second = (
        DatasetGraph(tf.data.Dataset.range(2).map(lambda n, start=start: n + start)).spliced({})
        for start in (ten, twenty)
    )
    assert [[int(n) for n in each] for each in (second, first, second)] == [[20, 21], [10, 11], [20, 21]]


def counting():
    count = tf.Variable(0, dtype=tf.int64)
    return lambda _: count.assign_add(1)


def counting_now_and_then():
    count = tf.Variable(0, dtype=tf.int64)

    @tf.function
    def one(number):
        if number > 3:
            count.assign_add(1)
        return count.read_value()

    return one


def normalizing():
    layer = keras.layers.BatchNormalization()
    layer.build((1, 1))
    return lambda number: layer(tf.cast(number, tf.float32)[None, None], training=True)


def filling():
    numbers = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)

    def fill(number):
        with tf.control_dependencies([numbers.insert(number, number)]):
            return numbers.lookup(number)

    return fill


@pytest.mark.parametrize("make", [counting, counting_now_and_then, normalizing, filling])
def test_what_a_function_writes_is_refused_with_the_line(use, make):
    use("127.0.0.1:1")  # no server is there, and none may be asked
    with pytest.raises(InputError, match=r"test_variables\.py:\d+: map\(\w+\): its function writes a variable"):
        data.distribute(tf.data.Dataset.range(8).map(make()).batch(2))
