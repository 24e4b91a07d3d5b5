"""What a script does to a dataset that was distributed, and each rank would do alone, is refused or told."""

import functools
import subprocess
import sys

import pytest
import tensorflow as tf
from headrace.errors import InputError
from headrace.tensorflow import data
from headrace.tensorflow.ranks import collectives

Dataset = tf.data.Dataset


def sum_of(elements):
    return elements.reduce(tf.constant(0, tf.int64), lambda total, each: total + each)


@pytest.fixture
def distributed(monkeypatch):
    monkeypatch.setattr(collectives, "size", lambda: 1)
    return lambda dataset: data.distribute(dataset).map(lambda x: x + 1).prefetch(1)


@pytest.mark.parametrize(
    ("do", "problem"),
    [
        (
            lambda stream: stream.shard(2, 0),
            r"test_afterwards.py:\d+: shard, after .* takes a part of what is this rank's",
        ),
        (lambda stream: stream.skip(2), r"skip, after .* take and skip before data.distribute"),
        (
            lambda stream: Dataset.sample_from_datasets([stream, stream]),
            r"sample_from_datasets \(or rejection_resample\), after .* give it a seed",
        ),
    ],
    ids=["shard", "skip", "a mixture"],
)
def test_what_would_lose_samples_or_never_end_is_refused_where_it_is_written(distributed, do, problem):
    with pytest.raises(InputError, match=problem):
        do(distributed(Dataset.range(80).batch(4)))


@pytest.mark.parametrize(
    ("do", "told"),
    [
        (lambda stream: stream.filter(lambda x: x[0] > 2), "warning: test_afterwards.py:"),
        (lambda stream: stream.unbatch().batch(8), "unbatch, after data.distribute, may give ranks unequal numbers"),
        (lambda stream: Dataset.zip((stream, stream)), "pairs whatever comes next of each"),
        (
            lambda stream: Dataset.zip((stream, Dataset.range(80).map(abs).batch(4))),
            "pairs whatever comes next of each",
        ),
        (lambda stream: stream.cache(), "cache, after data.distribute, keeps what this rank got"),
        (lambda stream: stream.flat_map(Dataset.from_tensor_slices), "flatmap, after data.distribute, may give ranks"),
    ],
    ids=["filter", "other batches", "pairs", "labels of its own", "a cache", "elements"],
)
def test_what_may_end_otherwise_on_each_rank_or_pair_otherwise_is_told(distributed, do, told, capfd):
    do(distributed(Dataset.range(80).batch(4)))
    assert told in capfd.readouterr().out


def test_what_does_no_harm_goes_on_without_a_word(distributed, capfd):
    stream, endless = distributed(Dataset.range(80).batch(4)), distributed(Dataset.range(80).repeat().batch(4))
    stream.take(2).map(lambda x: x * 2).cache().enumerate()
    endless.filter(lambda x: x[0] > 2).take(5)
    Dataset.sample_from_datasets([endless, endless])
    Dataset.sample_from_datasets([stream, stream], seed=3)
    Dataset.sample_from_datasets([stream, Dataset.range(80).batch(4)])
    Dataset.zip((stream, Dataset.range(9), Dataset.counter().map(abs)))
    endless.cache()
    Dataset.range(9).skip(2).shard(2, 1).filter(lambda x: x > 2)
    data.split_by_rank(Dataset.range(80).batch(4)).skip(1).unbatch()
    data.distribute(Dataset.range(80).batch(4), shared=False).shard(2, 0).skip(1)
    whole = functools.reduce(Dataset.concatenate, [Dataset.range(1)] * 400)
    assert len(list(tf.function(lambda: sum_of(stream.unbatch()))().numpy().reshape(-1))) == 1 and whole.prefetch(1)
    assert "after data.distribute" not in capfd.readouterr().out


SCRIPT = """
import tensorflow as tf
from headrace.tensorflow import data

train = data.distribute(tf.data.Dataset.range(8).batch(2))
one_device = tf.distribute.OneDeviceStrategy("/cpu:0").experimental_distribute_dataset(train)
print(sorted(int(number) for batch in one_device for number in batch))
"""


def test_a_script_that_reads_its_part_through_a_strategy_is_not_warned(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ended = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    assert ended.stdout == f"{list(range(8))}\n"
