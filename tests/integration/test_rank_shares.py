"""If a dataset's batches can be counted, each rank has its own part, and knows how many batches this part has."""

import collections

import pytest
import tensorflow as tf
from headrace.errors import InputError
from headrace.tensorflow import data
from headrace.tensorflow.sharding.rank_shares import Share

from tests.integration.service import Ranks, consumers

RANGE = tf.data.Dataset.range(1_000)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("most", [1, 4])
def test_pieces_have_each_batch_once_and_ranks_have_as_many_as_each_other_or_one_more(ranks, most):
    for batches in (ranks, ranks + 1, 63, 64, 65, 70):
        shares = [Share(rank, ranks, 10, batches, most) for rank in range(ranks)]
        seen = collections.Counter()
        for share in shares:
            firsts, counts = share.piece(tf.range(share.pieces(), dtype=tf.int64))
            own = [first + n for first, count in zip(firsts.numpy(), counts.numpy(), strict=True) for n in range(count)]
            assert len(own) == share.own() * 10
            seen.update(own)
        assert seen == dict.fromkeys(range(batches * 10), 1)
        counts = [share.own() for share in shares]
        assert [share.steps("keep") for share in shares] == counts
        assert {share.steps("pad") for share in shares} == {max(counts)} == {-(-batches // ranks)}
        assert {share.steps("drop") for share in shares} == {batches // ranks}


@pytest.fixture
def records(tmp_path):
    paths = [str(tmp_path / f"{number}.tfrecord") for number in range(3)]
    for number, path in enumerate(paths):
        with tf.io.TFRecordWriter(path) as writer:
            for record in range(number * 100, number * 100 + 70):
                writer.write(str(record))
    return tf.data.TFRecordDataset(paths).map(lambda text: tf.strings.to_number(text, tf.int64))


def test_ranks_have_known_and_equal_numbers_of_batches_of_what_can_be_counted(use, servers, records):
    datasets = {
        "batched": (RANGE.batch(32), 11), "shuffled": (RANGE.shuffle(1_000).batch(32), 11),
        "mapped later": (RANGE.batch(8).map(lambda n: n + 1).batch(4), 11),
        "records": (records.take(210).shuffle(50).batch(10), 7), "elements": (RANGE.take(100), 34),
        "no remainder": (RANGE.batch(32, drop_remainder=True), 11),
    }  # fmt: skip
    use(servers(2).address)
    for name, (dataset, steps) in datasets.items():
        for uneven in ("pad", "keep"):
            streams = consumers(3, dataset, uneven=uneven, job_name=f"{name} {uneven}".replace(" ", "-"))
            parts = [[*stream.as_numpy_iterator()] for stream in streams]
            assert [len(part) for part in parts] == [int(stream.cardinality()) for stream in streams], name
            expected, got = (
                [str(x) for each in of for x in tf.reshape(each, [-1]).numpy()]
                for of in (dataset, [batch for part in parts for batch in part])
            )
            if uneven == "pad":
                assert [len(part) for part in parts] == [steps] * 3, name
                assert set(got) == set(expected) or name == "no remainder"
            elif name == "no remainder":
                assert len(got) == len(set(got)) == len(expected)
            else:
                assert collections.Counter(got) == collections.Counter(expected), name


def test_ranks_without_a_seed_share_the_order_of_rank_0_in_every_epoch(use, servers):
    use(servers(2).address)
    streams, orders = consumers(2, RANGE.shuffle(1_000).batch(10), job_name="orders"), []
    for _ in range(2):
        orders.append([int(n) for stream in streams for batch in stream for n in batch])
        assert sorted(orders[-1]) == list(range(1_000))
    assert orders[0] != orders[1]


def test_what_cannot_be_counted_is_shared(use, servers):
    use(servers(1).address)
    several = RANGE.batch(32).concatenate(RANGE.batch(32))
    for number, dataset in enumerate((RANGE.filter(lambda n: n > 1).batch(32), several)):
        for stream in consumers(2, dataset, job_name=f"shared-{number}"):
            assert int(stream.cardinality()) == tf.data.UNKNOWN_CARDINALITY


def test_fewer_batches_than_ranks_are_refused_in_both_modes(use, monkeypatch):
    for mode in ("service", "local"):
        use("127.0.0.1:1")
        monkeypatch.setenv("HEADRACE_TF_DATA_MODE", mode)
        with Ranks(3).playing(0), pytest.raises(InputError, match="2 batches for 3 ranks: make batches smaller"):
            data.distribute(RANGE.take(20).batch(10))
