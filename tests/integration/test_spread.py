"""A shuffle moves elements within windows. A block of the shuffled dataset has elements from all over its window."""

import numpy as np
import pytest
import tensorflow as tf
from headrace.tensorflow.sharding.dataset_graph import DatasetGraph
from headrace.tensorflow.sharding.shuffle_order import Order
from headrace.tensorflow.sharding.slicing import in_blocks
from headrace.tensorflow.sharding.split_points import find_sources

CLASSES, EACH = 8, 64
SORTED = np.repeat(np.arange(CLASSES), EACH)
Data = tf.data.Dataset


def labels():
    return Data.from_tensor_slices(SORTED)


def of_blocks(dataset, numbers):
    """Return the batches that a pipeline makes from some blocks of its only source. `numbers` selects the blocks."""
    graph = DatasetGraph(dataset)
    (source,) = find_sources(graph)
    order = source.shuffle and source.shuffle.order(source.elements)
    blocks = in_blocks(source.node, source.block, numbers(source.blocks), order)
    return [batch.numpy().tolist() for batch in graph.spliced({source.node: blocks})]


def only_the_third(blocks):
    return Data.from_tensors(np.int64(min(3, blocks - 1)))


SHUFFLED = {
    "of rows": labels().shuffle(CLASSES * EACH),
    "of a range": Data.range(0, 2 * CLASSES * EACH, 2).map(lambda n: n // (2 * EACH)).shuffle(CLASSES * EACH),
    "of pairs": Data.zip((labels(), labels())).shuffle(CLASSES * EACH).map(lambda a, b: (a + b) // 2),
    "of a part": Data.zip((labels(), labels())).skip(0).take(10_000).map(lambda a, _: a).shuffle(CLASSES * EACH),
    "of a part that begins later": Data.range(-5, CLASSES * EACH).skip(5).map(lambda n: n // EACH).shuffle(600),
    "of a shard": Data.range(3 * CLASSES * EACH).shard(3, 1).map(lambda n: n // (3 * EACH)).shuffle(600),
    "of what a function makes": labels().map(lambda n: n + 0).filter(lambda n: n >= 0).shuffle(CLASSES * EACH),
    "with a buffer as large as it": labels().shuffle(tf.data.UNKNOWN_CARDINALITY),
}


@pytest.mark.parametrize("name", SHUFFLED)
def test_who_gets_a_single_block_of_sorted_elements_makes_a_batch_of_all_kinds(name):
    (batch,) = of_blocks(SHUFFLED[name].batch(4 * CLASSES), only_the_third)
    assert len(set(batch)) >= CLASSES - 1


@pytest.mark.parametrize("name", SHUFFLED)
def test_all_blocks_together_have_each_element_once(name):
    for batch in (7, 32, 512):
        made = of_blocks(SHUFFLED[name].batch(batch), Data.range)
        assert sorted(n for each in made for n in each) == SORTED.tolist()
        assert [len(each) for each in made].count(batch) == CLASSES * EACH // batch


@pytest.mark.parametrize("size", [2, 3, 10, 97, 1438])
def test_it_makes_no_difference_what_the_number_of_elements_can_be_divided_by(size):
    made = of_blocks(Data.range(size).shuffle(size).batch(2), Data.range)
    assert sorted(n for each in made for n in each) == list(range(size))


@pytest.mark.parametrize("elements", [1, 2, 3, 97, 1438])
@pytest.mark.parametrize("buffer", [1, 2, 10, 2000])
def test_an_order_has_each_element_once_no_farther_away_than_the_shuffle_would_take_it(elements, buffer):
    places = np.arange(elements)
    for number in range(3):
        numbers = Order(elements, min(buffer, elements), number).numbers(tf.constant(places)).numpy()
        assert sorted(numbers) == places.tolist()
        assert np.abs(numbers - places).max() < buffer


def test_each_repetition_has_each_element_once_in_an_order_of_its_own():
    every = Order(97, 20, repetitions=3).numbers(tf.range(3 * 97, dtype=tf.int64)).numpy().reshape(3, 97)
    assert np.sort(every).tolist() == [list(range(97))] * 3
    assert (every[0] == every[1]).mean() < 0.2 > (every[1] == every[2]).mean()


def test_orders_differ_and_so_do_windows_of_one():
    first, other = (Order(4000, 1000, number).numbers(tf.range(4000, dtype=tf.int64)).numpy() for number in (1, 2))
    assert np.mean(first == other) < 0.01
    assert np.mean(first[:1000] == first[1000:2000] - 1000) < 0.02


def test_a_shuffle_with_a_smaller_buffer_has_a_block_from_all_of_its_window():
    (batch,) = of_blocks(Data.range(512).shuffle(128).batch(8), only_the_third)
    assert 0 <= min(batch) < 64 < max(batch) < 128


@pytest.mark.parametrize(
    "dataset",
    [
        Data.range(512).batch(32).shuffle(1000).map(lambda batch: batch),
        Data.range(512).batch(32),
    ],
    ids=["batches are shuffled", "no shuffle"],
)
def test_elements_in_a_row_stay_together_where_the_script_says_so(dataset):
    batches = of_blocks(dataset, only_the_third)
    elements = sorted(n for each in batches for n in each)
    assert elements == list(range(elements[0], elements[0] + len(elements)))
