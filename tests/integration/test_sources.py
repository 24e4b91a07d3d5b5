"""What a dataset is split at: how much is handed out at once, and how many batches a dataset of unknown length has."""

import pytest
import tensorflow as tf
from headrace.tensorflow.length import likely_batches
from headrace.tensorflow.sharding.dataset_graph import INFINITE, UNKNOWN_SIZE, DatasetGraph
from headrace.tensorflow.sharding.split_points import find_sources

LARGE = tf.data.Dataset.from_tensor_slices(tf.zeros([4_000, 9_000], tf.uint8)).repeat()


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


@pytest.fixture
def folder(tmp_path):
    for file in range(4):
        with tf.io.TFRecordWriter(str(tmp_path / f"{file}.tfrecord")) as writer:
            for record in range(30):
                writer.write(f"{record:>100}")
        (tmp_path / f"{file}.none").touch()
        (tmp_path / f"{file}.txt").write_text("".join(f"{line:>20}\n" for line in range(50)))
    return tmp_path


def files(kind, reader):
    return lambda folder: tf.data.Dataset.list_files(f"{folder}/*.{kind}").interleave(reader)


@pytest.mark.parametrize(
    ("make", "batches"),
    [
        (files("tfrecord", tf.data.TFRecordDataset), 12), (files("txt", tf.data.TextLineDataset), 20),
        (files("txt", lambda file: tf.data.experimental.CsvDataset(file, [tf.string])), 20),
        (lambda _: tf.data.Dataset.range(100).filter(lambda n: n % 2 == 0), 10),
        (lambda folder: files("txt", tf.data.TextLineDataset)(folder).repeat(3), 60),
        (lambda _: tf.data.Dataset.range(70), 7), (lambda _: tf.data.Dataset.range(70).repeat(), INFINITE),
        (lambda _: tf.data.Dataset.list_files(__file__).interleave(tf.data.TFRecordDataset), UNKNOWN_SIZE),
        (lambda _: tf.data.Dataset.from_tensor_slices(["elsewhere"]).interleave(tf.data.TFRecordDataset), UNKNOWN_SIZE),
        (lambda _: tf.data.Dataset.range(9).flat_map(tf.data.Dataset.range), UNKNOWN_SIZE),
        (lambda folder: tf.data.Dataset.zip((tf.data.TextLineDataset(f"{folder}/0.txt"),) * 2).take(40).shuffle(9), 4),
        (lambda _: tf.data.Dataset.range(30).concatenate(tf.data.Dataset.range(40)).filter(lambda n: n > 1), 7),
        (lambda _: tf.data.Dataset.range(70).filter(lambda n: n > 1).batch(5)
         .concatenate(tf.data.Dataset.range(9).batch(5)), UNKNOWN_SIZE),
        (files("none", tf.data.TextLineDataset), UNKNOWN_SIZE),
        (lambda _: tf.data.Dataset.range(9).filter(lambda n: n > 1).repeat(), INFINITE),
        (lambda folder: files("txt", tf.data.TextLineDataset)(folder).batch(4).unbatch(), UNKNOWN_SIZE),
    ],
)  # fmt: skip
def test_few_batches_are_known_to_be_few_whatever_is_read_or_left_out(folder, make, batches):
    graph = DatasetGraph(make(folder).batch(10))
    assert likely_batches(graph, find_sources(graph)) == batches
