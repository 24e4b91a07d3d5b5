"""Each pass and repetition of a shuffled dataset has a new order. A slow worker leaves elements to the others."""

import itertools
import signal
import time
from collections import Counter

import keras
import numpy as np
import pytest
import tensorflow as tf
from headrace.tensorflow import data
from headrace.tensorflow.sharding import epoch_orders
from headrace.tensorflow.sharding.dataset_graph import DatasetGraph
from headrace.tensorflow.sharding.split_points import find_sources

from tests.integration.service import service

ELEMENTS, BATCH = 1000, 10
MANY = 4_000  # far more than workers and readers keep ready
IMAGE = tf.reshape(tf.range(64.0), [8, 8, 1])
Data = tf.data.Dataset
_names = itertools.count()


@pytest.fixture
def served(servers, use):
    """Function that makes this process read from a service with the given number of workers."""
    return lambda workers: use(servers(workers).address)


def distributed(dataset):
    return data.distribute(dataset.batch(BATCH), job_name=f"stream-{next(_names)}")


def one_pass(stream):
    return [int(n) for batch in stream for n in batch]


def orders(dataset):
    graph = DatasetGraph(dataset)
    shuffles = [source.shuffle for source in find_sources(graph)]
    return epoch_orders.orders_of(graph, [each for each in shuffles if each and each.is_replaceable])


@pytest.mark.parametrize("buffer", [ELEMENTS, 100])
def test_every_pass_has_each_element_once_and_another_order(served, buffer):
    served(2)
    stream = distributed(Data.range(ELEMENTS).shuffle(buffer))
    every = [one_pass(stream) for _ in range(epoch_orders.ORDERS + 2)]
    assert all(sorted(each) == list(range(ELEMENTS)) for each in every)
    same_place = [sum(a == b for a, b in zip(*two, strict=True)) for two in itertools.pairwise(every)]
    assert max(same_place) < ELEMENTS / 10
    assert all(sum(each[:200]) < 200 * 250 for each in every) == (buffer == 100)  # a small buffer moves no element far


def test_a_seeded_shuffle_of_what_is_no_listing_has_another_order_in_each_pass_beside_random_draws(served):
    served(1)
    generator = tf.random.Generator.from_seed(1)
    records = Data.range(ELEMENTS).batch(2).unbatch()

    def stream(seed, **options):
        shuffled = records.shuffle(ELEMENTS, seed=seed, **options).shuffle(9, seed=seed, **options)
        return distributed(shuffled.map(lambda n: n + tf.cast(generator.uniform([]) < 0.0, tf.int64)))

    streams = [stream(seed) for seed in (3, 3, 4)]
    every = [one_pass(streams[0]) for _ in range(4)]
    assert all(sorted(each) == list(range(ELEMENTS)) for each in every)
    same_place = [sum(map(int.__eq__, *two)) for two in itertools.combinations(every, 2)]
    assert max(same_place) < ELEMENTS / 20
    assert one_pass(streams[1]) == every[0] != one_pass(streams[2])
    fixed = stream(3, reshuffle_each_iteration=False)
    assert one_pass(fixed) == one_pass(fixed)


@pytest.mark.parametrize("shuffle", [False, True])
def test_random_layers_draw_anew_in_each_pass_and_those_of_one_seed_alike(served, shuffle):
    served(1)
    of_image, of_mask = (keras.layers.RandomRotation(0.4, seed=1) for _ in range(2))
    generator = tf.random.Generator.from_seed(1)

    def augment(number):
        image, mask = (tf.reduce_sum(layer(IMAGE, training=True) * IMAGE) for layer in (of_image, of_mask))
        return number, image, mask, generator.uniform([])

    numbers = Data.range(40).shuffle(40) if shuffle else Data.range(40)
    stream = distributed(numbers.map(augment))
    every = [{int(n): more for batch in stream for n, *more in zip(*batch, strict=True)} for _ in range(3)]
    assert all(float(image) == float(mask) for each in every for image, mask, _ in each.values())
    for first, second in itertools.combinations(every, 2):
        assert not any(a == b for n in range(40) for a, b in zip(first[n], second[n], strict=True))


def test_each_order_has_the_tables_and_variables_that_functions_read(served):
    served(1)
    words = tf.constant([f"w{n}" for n in range(200)])
    keys = tf.lookup.KeyValueTensorInitializer(words, tf.range(200, dtype=tf.int64))
    table, scale = tf.lookup.StaticHashTable(keys, -1), tf.Variable(3, dtype=tf.int64)
    listing = Data.from_tensor_slices(words).take(150).shuffle(150)
    stream = distributed(listing.map(lambda word: scale * table.lookup(word)))
    for _ in range(epoch_orders.ORDERS):
        assert sorted(one_pass(stream)) == [3 * n for n in range(150)]


def test_a_seed_says_the_orders_and_one_order_can_be_asked_for(served):
    served(1)
    seeded = [distributed(Data.range(ELEMENTS).shuffle(ELEMENTS, seed=seed)) for seed in (5, 5, 6)]
    first, again, other = (one_pass(stream) for stream in seeded)
    assert first == again != other
    assert one_pass(seeded[0]) != first
    fixed = distributed(Data.range(ELEMENTS).shuffle(ELEMENTS, reshuffle_each_iteration=False))
    assert one_pass(fixed) == one_pass(fixed) != sorted(one_pass(fixed))


def test_a_worker_that_stands_still_leaves_elements_to_the_other(tmp_path, use):
    def make(number):
        environ = tf.io.read_file("/proc/self/environ")
        return number, tf.strings.regex_full_match(environ, r"(.|\n)*STOPPED=sometimes(.|\n)*")

    def received(batches):
        return [tuple(map(int, pair)) for numbers, second in batches for pair in zip(numbers, second, strict=True)]

    with service(tmp_path / "work", 1) as running:
        running.add_worker(STOPPED="sometimes")
        running.wait_for_workers()
        use(running.address)
        stream = distributed(Data.range(MANY).shuffle(MANY).map(make))
        for _ in range(3):
            batches = iter(stream)
            made = []
            while {second for _, second in made} != {0, 1}:
                made += received([next(batches)])
                time.sleep(0.05)  # leaves elements for a worker that joins late, on a busy machine
            running.workers[1].send_signal(signal.SIGSTOP)
            try:
                # An equal share would be half of the elements.
                while Counter(second for _, second in made)[0] < 0.7 * MANY:
                    made += received([next(batches)])
            finally:
                running.workers[1].send_signal(signal.SIGCONT)
            made += received(batches)
            assert sorted(number for number, _ in made) == list(range(MANY))


REPEATED = {
    "shuffled as a whole": Data.range(ELEMENTS).shuffle(ELEMENTS).repeat(),
    "shuffled, with a smaller buffer": Data.range(ELEMENTS).map(lambda n: n).shuffle(100).map(lambda n: n).repeat(),
    "shuffled after that": Data.range(ELEMENTS).repeat().shuffle(ELEMENTS),
    "in batches": Data.range(ELEMENTS).shuffle(ELEMENTS).batch(30).map(lambda batch: batch).repeat().unbatch(),
    "not shuffled": Data.range(ELEMENTS).repeat(),
}


@pytest.mark.parametrize("name", REPEATED)
def test_of_a_listing_without_end_no_element_comes_again_before_the_others_came(served, name):
    served(2)
    batches = iter(distributed(REPEATED[name].map(lambda n: n + 0)))
    every = [[int(n) for _ in range(ELEMENTS // BATCH) for n in next(batches)] for _ in range(4)]
    # When a repetition ends, workers still hold some of its elements. These may come during the next repetition.
    assert all(len(set(each)) > 0.8 * ELEMENTS for each in every)
    assert all((each == sorted(each)) <= (name == "not shuffled") for each in every)


def test_each_new_iterator_over_a_stream_without_end_begins_with_other_elements_and_draws(served):
    served(2)
    generator = tf.random.Generator.from_seed(1)
    listing = Data.range(ELEMENTS).shuffle(ELEMENTS).repeat()
    stream = distributed(listing.map(lambda n: (n, generator.uniform([]))))
    begins = [
        [each for batch in stream.take(5) for each in zip(*map(np.asarray, batch), strict=True)] for _ in range(4)
    ]
    for first, second in itertools.combinations(begins, 2):
        numbers, draws = (len({each[i] for each in first} & {each[i] for each in second}) for i in (0, 1))
        assert numbers < len(first) / 2 and not draws


def test_of_a_listing_that_is_repeated_a_few_times_all_elements_come_as_often(served):
    served(2)
    for dataset in (Data.range(ELEMENTS).shuffle(100).repeat(3), Data.range(ELEMENTS).map(abs).repeat(3).shuffle(10)):
        stream = distributed(dataset)
        for _ in range(2):
            assert Counter(Counter(one_pass(stream)).values()) == {3: ELEMENTS}


def test_workers_shuffle_what_is_huge_and_what_a_cache_repeats(monkeypatch):
    dataset = Data.range(ELEMENTS).shuffle(ELEMENTS)
    assert len(orders(dataset.batch(BATCH))) == len(orders(dataset.repeat(3).batch(BATCH))) == epoch_orders.ORDERS
    assert len(orders(dataset.repeat().batch(BATCH))) == epoch_orders.ORDERS
    assert not orders(Data.range(ELEMENTS).batch(BATCH))
    assert not orders(dataset.cache().repeat().batch(BATCH))
    assert not orders(dataset.repeat(2).repeat().batch(BATCH))
    monkeypatch.setattr(epoch_orders, "ORDERS_BYTES", 3 * DatasetGraph(dataset).definition.ByteSize())
    assert not orders(dataset)
    assert len(orders(dataset.repeat())) == 1  # enough: each repetition of an endless dataset has its own order
