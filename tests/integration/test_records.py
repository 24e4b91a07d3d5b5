"""Ranks and workers divide the records of TFRecord files exactly, also after `take`, `skip` or `enumerate`. Each file
is read at most twice."""

import os
from pathlib import Path

import pytest
import tensorflow as tf
from headrace.errors import InputError
from headrace.tensorflow import data
from headrace.tensorflow.ranks import collectives
from headrace.tensorflow.sharding import refusals, sources
from headrace.tensorflow.sharding.dataset_graph import DatasetGraph
from headrace.tensorflow.sharding.split_points import find_sources

from tests.integration.service import consumers

Dataset, TFRecordDataset = tf.data.Dataset, tf.data.TFRecordDataset
COUNTS = (900, 0, 1, 700, 1400)
ONCE_MORE = 2


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, number = tmp_path_factory.mktemp("records"), 0
    for place, count in enumerate(COUNTS):
        with tf.io.TFRecordWriter(str(folder / f"{place}.tfrecord")) as writer:
            for _ in range(count):
                writer.write(f"{number:08}" + "." * (2_000 + number * 7919 % 4_000))
                number += 1
    return sorted(map(str, folder.iterdir()))


def numbers(rows):
    return rows.map(lambda record: tf.strings.to_number(tf.strings.substr(record, 0, 8), tf.int64))


PIPELINES = {
    "skip": lambda files: numbers(TFRecordDataset(files).skip(70)),
    "take": lambda files: numbers(TFRecordDataset(files)).take(2_500),
    "enumerate": lambda files: TFRecordDataset(files).enumerate().map(lambda number, _: number),
    "shard": lambda files: numbers(TFRecordDataset(files).shard(2, 1)),
    "zip": lambda files: Dataset.zip((numbers(TFRecordDataset(files)), Dataset.range(2_000))).map(lambda one, _: one),
    "repeat": lambda files: numbers(TFRecordDataset(files).take(900).repeat(2)),
    "shuffle": lambda files: numbers(TFRecordDataset(files).skip(70)).shuffle(100),
}


def bytes_read(process="self"):
    return int(Path(f"/proc/{process}/io").read_text().split()[1])


def elements(dataset):
    return [int(number) for batch in dataset for number in batch]


def ranks(monkeypatch):
    monkeypatch.setattr(collectives, "size", lambda: 2)
    monkeypatch.setattr(collectives, "of_all_ranks", lambda value, *_: [value])
    for rank in range(2):
        monkeypatch.setattr(collectives, "rank", lambda rank=rank: rank)
        yield rank


@pytest.mark.parametrize(
    ("name", "most_places"), [*((name, 100) for name in PIPELINES), ("shuffle", sources.MOST_PLACES)]
)
def test_ranks_read_each_record_once_and_once_more_at_most(name, most_places, files, monkeypatch):
    monkeypatch.setattr(sources, "MOST_PLACES", most_places)
    expected = sorted(elements(PIPELINES[name](files).batch(16)))
    before = bytes_read()
    got = [each for _ in ranks(monkeypatch) for each in elements(data.split_by_rank(PIPELINES[name](files).batch(16)))]
    assert sorted(got) == expected
    of_all = sum(map(os.path.getsize, files)) * (2 if name == "repeat" else 1)
    assert bytes_read() - before < ONCE_MORE * of_all


@pytest.mark.parametrize("name", PIPELINES)
def test_workers_read_each_record_once_and_once_more_at_most(name, files, use, servers):
    expected = sorted(elements(PIPELINES[name](files).batch(16)))
    use(servers(2).address)
    processes = ["self", *(worker.pid for worker in servers(2).workers)]
    before = sum(map(bytes_read, processes))
    (stream,) = consumers(1, PIPELINES[name](files).batch(16))
    assert sorted(elements(stream)) == expected
    read = sum(map(bytes_read, processes)) - before
    assert read < ONCE_MORE * sum(map(os.path.getsize, files)) * (2 if name == "repeat" else 1)


READ_FROM_THE_START = {
    "lines": lambda files: tf.data.TextLineDataset(files).skip(1),
    "csv": lambda files: tf.data.experimental.CsvDataset(files, [tf.string]).take(9),
    "fixed lengths": lambda files: tf.data.FixedLengthRecordDataset(files, 100).take(9),
    "read in parallel": lambda files: TFRecordDataset(files, num_parallel_reads=2).take(9),
    "interleaved": lambda files: Dataset.from_tensor_slices(files).interleave(TFRecordDataset).enumerate(),
    "filtered": lambda files: TFRecordDataset(files).filter(lambda record: record != "").take(9),
}


@pytest.mark.parametrize("name", READ_FROM_THE_START)
def test_large_files_that_each_part_would_read_from_the_start_are_refused_with_what_to_write(name, files, monkeypatch):
    monkeypatch.setattr(refusals, "SKIPPED_BYTES", 4 << 20)
    with pytest.raises(InputError, match=r" \d+ MiB would be read up to 16 times. Write files.interleave.*Shards"):
        find_sources(DatasetGraph(READ_FROM_THE_START[name](files).batch(2)))


def test_small_files_may_be_read_again_and_whole_files_are_never(files, monkeypatch):
    find_sources(DatasetGraph(READ_FROM_THE_START["lines"](files).batch(2)))
    monkeypatch.setattr(refusals, "SKIPPED_BYTES", 0)
    names = Dataset.from_tensor_slices(files)
    for rows in (names.enumerate().interleave(lambda _, file: TFRecordDataset(file)), TFRecordDataset(files).take(9)):
        find_sources(DatasetGraph(rows.batch(2)))
