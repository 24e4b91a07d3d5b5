"""Real servers deliver each element once, options work, and misuse is refused before training."""

import collections
import threading

import keras
import pytest
import tensorflow as tf
from headrace.errors import InputError
from headrace.tensorflow import data

from tests.integration.service import consumers, service
from tests.support import wait_for

ELEMENTS = 600


def begin_reading(ranks, dataset, **how):
    """Start consumers of one stream, each in a thread of its own.

    Return two values. The first is a list of lists: the elements that each consumer has read so far. The second is a
    function that waits until all consumers end, and then returns the same list of lists.
    """
    got = [[] for _ in range(ranks)]
    streams = consumers(ranks, dataset, **how)

    def consume(rank):
        for batch in streams[rank]:
            got[rank].extend(batch.numpy().tolist())

    threads = [threading.Thread(target=consume, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()

    def result():
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "a consumer hangs"
        return got

    return got, result


def read_with(ranks, dataset, **how):
    _, result = begin_reading(ranks, dataset, **how)
    return result()


def test_over_an_epoch_every_element_comes_once_to_one_rank(use, servers):
    use(servers(2).address)
    begun = []
    for seed in range(5):
        dataset = tf.data.Dataset.range(ELEMENTS).shuffle(ELEMENTS, seed=seed).batch(1 + 2 * seed)
        begun.append(begin_reading(2 + seed, dataset, job_name=f"epoch-{seed}"))
    for seed, (_, result) in enumerate(begun):
        seen = collections.Counter(element for part in result() for element in part)
        assert sorted(seen) == list(range(ELEMENTS)), f"seed {seed}: elements are missing"
        assert set(seen.values()) == {1}, f"seed {seed}: elements came twice"


def test_a_killed_worker_that_comes_back_costs_at_most_what_it_was_making(tmp_path, use):
    with service(tmp_path / "work", 2) as running:
        use(running.address)
        slow = tf.data.Dataset.range(2000).map(wait_a_little).batch(4)
        so_far, result = begin_reading(2, slow, job_name="killed")
        wait_for(lambda: sum(map(len, so_far)) >= 100, "a hundred elements")
        running.workers[1].kill()
        running.workers[1].wait()
        running.workers[1] = running.start_worker(running.worker_ports[1])
        got = result()
    assert [len(part) for part in got] == [1000, 1000], "each rank makes as many steps as without the fault"
    # For each rank, the killed worker loses up to sixteen batches, and the rest of a block of 28 elements.
    in_flight = 2 * (16 * 4 + 28)
    seen = collections.Counter(element for part in got for element in part)
    assert len(seen) >= 2000 - in_flight
    # A rank repeats its last batch in place of lost ones.
    assert {element for element, times in seen.items() if times > 1} <= {*got[0][-4:], *got[1][-4:]}


def wait_a_little(x):
    # A stand-in for preprocessing, which takes time on the worker, without Python.
    return x + tf.cast(0 * tf.reduce_sum(tf.linalg.matmul(tf.ones([200, 200]), tf.ones([200, 200]))), tf.int64)


def test_with_sharding_off_every_worker_makes_the_whole_dataset(use, servers):
    use(servers(2).address)
    got = read_with(1, tf.data.Dataset.range(50).batch(5), sharding="off", exact=False, job_name="off")
    assert collections.Counter(got[0]) == dict.fromkeys(range(50), 2)


def test_coordinated_reads_give_all_ranks_batches_of_the_same_length(use, servers, monkeypatch):
    lengths = [[], []]
    use(servers(2).address)
    dataset = tf.data.Dataset.range(1000).repeat()
    dataset = dataset.map(lambda n: tf.ones([1 + n // 2 % 5])).apply(
        lambda d: d.batch(1)
    )  # elements 0 and 1 have the same length, so do 2 and 3, and so on, as after bucketing
    streams = consumers(2, dataset, coordinated=True, sharding="off", job_name="coordinated")

    def consume(rank):
        lengths[rank] += [int(tf.shape(batch)[1]) for batch in streams[rank].take(20)]

    threads = [threading.Thread(target=consume, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(lengths[0]) == 20
    assert lengths[0] == lengths[1]


def test_each_dataset_of_a_script_has_a_stream_of_its_own(use, servers):
    use(servers(1).address)
    numbers = tf.data.Dataset.range(1_000)
    train, held_out = (data.distribute(each.batch(10)) for each in (numbers.skip(20).repeat(), numbers.take(20)))
    first = next(iter(train))
    assert sorted(int(n) for batch in held_out for n in batch) == list(range(20))
    assert int(tf.reduce_min(first)) >= 20


def in_python(x):
    return tf.numpy_function(lambda y: y, [x], tf.int64)


RANGE = tf.data.Dataset.range(100)
MISUSE = {
    "from_generator": (
        tf.data.Dataset.from_generator(lambda: range(3), output_signature=tf.TensorSpec([], tf.int32)), {},
        "write the data to TFRecords first",
    ),
    "py_function": (RANGE.map(lambda x: tf.py_function(lambda y: y, [x], tf.int64)), {}, "runs Python of this process"),
    "switch_case": (
        RANGE.map(lambda x: tf.switch_case(tf.constant(0), [lambda: in_python(x), lambda: x])), {}, "runs Python",
    ),
    "numpy_function": (RANGE.map(in_python), {}, "runs Python"),
    "finite and off": (RANGE.batch(4), {"sharding": "off"}, "each element would come once for every worker"),
    "finite and coordinated": (
        RANGE.batch(4), {"coordinated": True, "sharding": "off", "exact": False}, "Add .repeat() before .batch()",
    ),
    "coordinated and dynamic": (RANGE.repeat().batch(4), {"coordinated": True}, "add sharding='off'"),
    "unknown sharding": (RANGE.batch(4), {"sharding": "random"}, "expected one of dynamic, off"),
    "unknown compression": (RANGE.batch(4), {"compression": "zip"}, "expected one of none, snappy"),
    "no requests": (RANGE.batch(4), {"max_outstanding_requests": 0}, "expected 1 or more"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISUSE)
def test_misuse_is_refused_before_training_with_the_mend(use, name):
    dataset, how, said = MISUSE[name]
    use("127.0.0.1:1")  # no server is there, and none may be asked
    with pytest.raises(InputError, match=said.replace("(", r"\(").replace(")", r"\)")):
        data.distribute(dataset, **how)


def test_what_is_no_dataset_is_refused_with_what_to_do():
    for take in (data.distribute, data.split_by_rank):
        with pytest.raises(InputError, match=r"expected a tf.data.Dataset, got a PyDataset.*from hvd.rank"):
            take(keras.utils.PyDataset())
        with pytest.raises(InputError, match="got a list: make one from arrays by"):
            take([1, 2, 3])


def test_in_local_mode_one_rank_reads_the_dataset_as_it_is(monkeypatch):
    monkeypatch.delenv("HEADRACE_TF_DATA_MODE", raising=False)
    batches = RANGE.shuffle(10, seed=3).batch(10)
    assert [b.tolist() for b in data.distribute(batches).as_numpy_iterator()] == [
        b.tolist() for b in RANGE.shuffle(10, seed=3).batch(10).as_numpy_iterator()
    ]


def test_without_a_gpu_batches_are_not_copied_to_one(monkeypatch):
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda _: [])
    batches = tf.data.Dataset.range(8).batch(2)
    assert data.prefetch_to_device(batches) is batches
