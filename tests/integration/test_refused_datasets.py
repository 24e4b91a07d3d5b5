"""Datasets that are refused or warned of for what stands around them: the script's mode, the hosts."""

from contextlib import nullcontext

import pytest
import tensorflow as tf
from headrace.errors import InputError
from headrace.tensorflow import data
from headrace.tensorflow.sharding import refusals
from headrace.tensorflow.sharding.dataset_graph import DatasetGraph
from headrace.tensorflow.sharding.split_points import find_sources


def test_a_shard_by_host_is_named_for_data_hosts_are_among_the_hosts(monkeypatch, capsys):
    monkeypatch.setenv("SM_HOSTS", '["algo-1", "algo-2"]')
    monkeypatch.setenv("SM_CURRENT_HOST", "algo-2")
    for parts, part, warned in ((2, 1, True), (2, 0, False), (4, 1, False)):
        refusals.warn_of_shards(DatasetGraph(tf.data.Dataset.range(8).shard(parts, part).batch(2)))
        assert ("shard(2, 1) takes this host's part of 2 hosts" in capsys.readouterr().out) == warned


def test_what_makes_python_of_a_dataset_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(refusals.debug_mode, "DEBUG_MODE", True)
    with pytest.raises(InputError, match="enable_debug_mode"):
        data.distribute(tf.data.Dataset.range(8).batch(2))
    monkeypatch.undo()
    with tf.Graph().as_default(), pytest.raises(InputError, match="disable_eager_execution"):
        data.distribute(tf.data.Dataset.range(8).batch(2))


class Ragged(tf.experimental.ExtensionType):
    values: tf.Tensor


@pytest.mark.parametrize(
    ("elements", "advice"),
    [
        (tf.data.Dataset.range(8).window(2), "its elements are datasets.*flat_map them"),
        (tf.data.Dataset.range(8).map(Ragged), "of an ExtensionType.*make a dict or a tuple of its tensors"),
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
    with pytest.raises(InputError, match="where a loop concatenates, interleave over a list"):
        DatasetGraph(rows)


def test_what_reads_a_file_again_and_again_is_refused_with_where_to_repeat_instead():
    files = tf.data.Dataset.range(4)
    for times, is_refused in ((None, True), (-1, True), (3, False)):
        read = files.interleave(lambda n, times=times: tf.data.Dataset.range(n).repeat(times), cycle_length=2).batch(2)
        with pytest.raises(InputError, match=r"dataset.repeat\(\) before it") if is_refused else nullcontext():
            find_sources(DatasetGraph(read))


def test_all_of_a_dataset_on_each_rank_is_told(monkeypatch, capsys):
    for size, told in ((2, True), (1, False)):
        monkeypatch.setattr(refusals.world, "size", lambda size=size: size)
        refusals.warn_of_all_of_it()
        said = "no data hosts, each of the 2 ranks trains on all of the dataset"
        assert (said in capsys.readouterr().out) == told


@pytest.mark.parametrize(
    ("batches", "uneven", "told"),
    [(10, "pad", "'train' has 10 batches for 8 ranks: in each pass that trains 6 of them come again"), (10, "drop", ""),
     (16, "pad", ""), (101, "pad", ""), (-1, "pad", ""), (-2, "pad", "")],
)  # fmt: skip
def test_many_batches_that_come_again_are_told(batches, uneven, told, monkeypatch, capsys):
    monkeypatch.setattr(refusals.world, "size", lambda: 8)
    monkeypatch.setattr(refusals.world, "rank", lambda: 0)
    refusals.warn_of_padding(batches, uneven, "train")
    said = capsys.readouterr().out
    assert told in said and bool(told) == bool(said)


def test_a_relative_name_of_a_file_is_refused_once_the_script_has_changed_its_folder(monkeypatch, tmp_path):
    name = "rows-0.bin"
    relative, whole = (DatasetGraph(tf.data.FixedLengthRecordDataset([each], 4).batch(2))
                       for each in (name, str(tmp_path / name)))  # fmt: skip
    (tmp_path / name).write_bytes(bytes(8))
    refusals.refuse_elsewhere(relative)
    monkeypatch.chdir(tmp_path)
    refusals.refuse_elsewhere(whole)
    with pytest.raises(InputError, match=f"reads '{name}', which is a file here.*give files their whole names"):
        refusals.refuse_elsewhere(relative)


def test_arrays_are_refused_with_what_to_make_of_them():
    rows = tf.range(4).numpy()
    for given in (rows, (rows, rows), {"x": rows}):
        with pytest.raises(InputError, match="make one of arrays by"):
            data.distribute(given)


@pytest.mark.parametrize("again", [data.distribute, data.split_by_rank])
def test_a_dataset_is_distributed_once(again):
    once = data.distribute(tf.data.Dataset.range(8).batch(2))
    with pytest.raises(InputError, match="made from one that data"):
        again(once.map(lambda x: x + 1).prefetch(2))
    assert sum(len(batch) for batch in once) == 8
