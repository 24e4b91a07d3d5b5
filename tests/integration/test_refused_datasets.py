"""Unsuitable datasets are refused, or cause a warning, with advice on what to write instead."""

from contextlib import nullcontext

import pytest
import tensorflow as tf
from headrace.errors import InputError
from headrace.tensorflow import data
from headrace.tensorflow.sharding import refusals
from headrace.tensorflow.sharding.dataset_graph import DatasetGraph
from headrace.tensorflow.sharding.split_points import find_sources


def test_a_dataset_within_a_graph_is_refused():
    with tf.Graph().as_default(), pytest.raises(InputError, match="disable_eager_execution"):
        data.distribute(tf.data.Dataset.range(8).batch(2))


class Ragged(tf.experimental.ExtensionType):
    values: tf.Tensor


@pytest.mark.parametrize(
    ("elements", "advice"),
    [
        (tf.data.Dataset.range(8).window(2), "the dataset's elements are datasets.*flat_map them"),
        (tf.data.Dataset.range(8).map(Ragged), "of an ExtensionType.*make a dict or tuple of its tensors"),
    ],
    ids=["windows", "a type of the script's"],
)
def test_elements_that_cannot_leave_their_worker_are_refused_with_what_to_make_of_them(elements, advice):
    refusals.refuse_elements(tf.data.Dataset.range(8).batch(2))
    with pytest.raises(InputError, match=advice):
        refusals.refuse_elements(elements)


def test_a_chain_that_a_loop_makes_is_read_or_refused_with_what_to_write_instead():
    rows = tf.data.Dataset.range(2)
    for _ in range(300):
        rows = rows.concatenate(tf.data.Dataset.range(2))
    assert DatasetGraph(rows).sink.size == 602
    for _ in range(1200):
        rows = rows.concatenate(tf.data.Dataset.range(2))
    with pytest.raises(InputError, match="interleave over a list instead of concatenating in a loop"):
        DatasetGraph(rows)


def test_what_reads_a_file_again_and_again_is_refused_with_where_to_repeat_instead():
    files = tf.data.Dataset.range(4)
    for times, is_refused in ((None, True), (-1, True), (3, False)):
        read = files.interleave(lambda n, times=times: tf.data.Dataset.range(n).repeat(times), cycle_length=2).batch(2)
        with pytest.raises(InputError, match=r"repeat\(\) before this transformation") if is_refused else nullcontext():
            find_sources(DatasetGraph(read))


def test_all_of_a_dataset_on_each_rank_is_told(monkeypatch, capsys):
    for size, told in ((2, True), (1, False)):
        monkeypatch.setattr(refusals.collectives, "size", lambda size=size: size)
        refusals.warn_of_all_of_it()
        said = "no data hosts, each of the 2 ranks trains on the whole dataset"
        assert (said in capsys.readouterr().out) == told


@pytest.mark.parametrize(
    ("batches", "uneven", "told"),
    [(10, "pad", "'train' has 10 batches for 8 ranks: each training pass repeats 6 of them"), (10, "drop", ""),
     (16, "pad", ""), (101, "pad", ""), (-1, "pad", ""), (-2, "pad", "")],
)  # fmt: skip
def test_many_batches_that_come_again_are_told(batches, uneven, told, monkeypatch, capsys):
    monkeypatch.setattr(refusals.collectives, "size", lambda: 8)
    monkeypatch.setattr(refusals.collectives, "rank", lambda: 0)
    refusals.look_at_size(batches, uneven, "train")
    said = capsys.readouterr().out
    assert told in said and bool(told) == bool(said)


def test_large_arrays_are_refused_with_the_name_of_what_takes_them_and_lists_of_files_are_not():
    names = tf.data.Dataset.from_tensor_slices(["x" * 1000] * 80_000)
    few, many = (tf.data.Dataset.from_tensor_slices(tf.zeros([rows, 1 << 20])) for rows in (15, 17))
    for dataset in (names, few):
        refusals.refuse_large_arrays(DatasetGraph(dataset.batch(2)))
    with pytest.raises(InputError, match=r"py:\d+: from_tensor_slices: its arrays have 68 MiB.*use data.from_arrays"):
        refusals.refuse_large_arrays(DatasetGraph(many.batch(2)))


def test_arrays_are_refused_with_what_to_make_of_them():
    rows = tf.range(4).numpy()
    for given in (rows, (rows, rows), {"x": rows}):
        with pytest.raises(InputError, match="make one from arrays by"):
            data.distribute(given)


@pytest.mark.parametrize("again", [data.distribute, data.split_by_rank])
def test_a_dataset_is_distributed_once(again):
    once = data.distribute(tf.data.Dataset.range(8).batch(2))
    with pytest.raises(InputError, match="comes from data"):
        again(once.map(lambda x: x + 1).prefetch(2))
    assert sum(len(batch) for batch in once) == 8
