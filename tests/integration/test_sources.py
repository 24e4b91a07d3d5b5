"""Small elements are handed out in large blocks. Elements that may take long are handed out in small blocks."""

import pytest
import tensorflow as tf
from headrace.tensorflow.sharding.dataset_graph import DatasetGraph
from headrace.tensorflow.sharding.split_points import find_sources

LARGE = tf.data.Dataset.from_tensor_slices(tf.zeros([4_000, 9_000], tf.uint8)).repeat()


def of_several_lengths():
    rows = tf.data.Dataset.range(50_000).map(lambda number: tf.zeros([number % 50], tf.int32))
    return rows.bucket_by_sequence_length(tf.size, [10, 20], [32, 32, 32])


def mixed():
    return tf.data.Dataset.sample_from_datasets([tf.data.Dataset.range(50_000) for _ in range(2)]).batch(32)


@pytest.mark.parametrize("make", [of_several_lengths, mixed])
def test_elements_that_are_batched_by_length_or_mixed_are_handed_out_many_at_once(make):
    assert {source.block for source in find_sources(DatasetGraph(make()))} == {50_000 // 64}


@pytest.mark.parametrize(
    "listing, block",
    [
        (tf.data.Dataset.from_tensor_slices(tf.zeros([500_000], tf.float32)), 2_048),
        (tf.data.Dataset.from_tensor_slices(tf.zeros([50_000], tf.float32)), 768),
        (tf.data.Dataset.from_tensor_slices(tf.zeros([50_000], tf.float32)).repeat(), 768),
        (tf.data.Dataset.zip((LARGE, LARGE)), 384),
        (tf.data.Dataset.from_tensor_slices(tf.fill([50_000], "a file")), 256),
    ],
    ids=["small rows", "few to share", "few to share each time", "8 MiB of large rows", "text"],
)
def test_small_elements_are_handed_out_many_at_once_and_what_may_take_long_few(listing, block):
    dataset = listing.batch(128)
    assert [source.block for source in find_sources(DatasetGraph(dataset))] == [block]
