"""Check on three ranks, in local mode, that finite streams end on all ranks at the same step.
test_horovod.py runs this script."""

import os
import threading
import time

os.environ.pop("HEADRACE_TF_DATA_MODE", None)

import headrace.tensorflow.horovod_keras as hvd
import numpy as np
import psutil
import tensorflow as tf
from headrace.tensorflow import data
from refusal import refused

hvd.init()
rank, size = hvd.rank(), hvd.size()
ELEMENTS, BATCH = 1000, 32


def on_all_ranks(number):
    return np.asarray(hvd.allgather(tf.constant([number], tf.int64))).tolist()


def stream(name, uneven, is_counted=True, dataset=None, ahead=2):
    """Return a stream. If `is_counted`, each rank knows its number of batches; else the ranks agree on the end."""
    dataset = tf.data.Dataset.range(ELEMENTS) if dataset is None else dataset
    dataset = dataset if is_counted else dataset.filter(lambda n: n >= 0)
    return data.distribute(dataset.shuffle(50).batch(BATCH), uneven=uneven, job_name=name).prefetch(ahead)


def open_ports():
    """Return the sockets on which this process listens."""
    return [each for each in psutil.Process().net_connections("tcp") if each.status == psutil.CONN_LISTEN]


before = len(open_ports()), threading.active_count()
endless = data.distribute(tf.data.Dataset.range(ELEMENTS).repeat().batch(BATCH), job_name="endless")
assert int(next(iter(endless))[0]) >= 0
for is_counted in (True, False):
    for uneven, steps in (("pad", 11), ("drop", 10)):
        epochs = stream(f"{uneven}, {is_counted}", uneven, is_counted)
        assert int(epochs.cardinality()) == (steps if is_counted else tf.data.UNKNOWN_CARDINALITY)
        for _ in range(2):
            assert on_all_ranks(sum(1 for _ in epochs)) == [steps] * size, uneven
        # A pass that is given up does not disturb the next.
        assert on_all_ranks(sum(1 for _ in epochs.take(3))) == [3] * size
        assert on_all_ranks(sum(1 for _ in epochs)) == [steps] * size
    if is_counted:
        assert (len(open_ports()), threading.active_count()) == before, "nothing is to be agreed on"
assert len(open_ports()) == before[0], "once all ranks are connected, no port is open"

# Ranks 1 and 2 read ahead, so they wait for rank 0. They go on once they learn that rank 0 takes no more batches.
for uneven in ("drop", "pad"):
    epochs = stream(f"given up, {uneven}", uneven, is_counted=False, ahead=2 if rank else 0)
    for _ in range(3):
        assert on_all_ranks(sum(1 for _ in epochs.take(3))) == [3] * size

seen = np.concatenate(list(stream("kept", "keep").as_numpy_iterator()))
counts = np.bincount(np.asarray(hvd.allgather(tf.constant(seen))), minlength=ELEMENTS)
assert (counts == 1).all(), "each element once, over all ranks"

# No rank knows how many elements a filter leaves.
filtered = tf.data.Dataset.range(ELEMENTS).filter(lambda n: n % 7 > 2)
lengths = on_all_ranks(sum(1 for _ in stream("filtered", "pad", dataset=filtered)))
assert len(set(lengths)) == 1 and lengths[0] >= 6

# A deleted iterator ends, wherever in its pass it is. TensorFlow's autotuning used to delay that for up to a minute.
for number in range(12):
    iterator = iter(stream(f"deleted {number}", "pad", is_counted=False) if number < 2 else epochs)
    for _ in range(number % 5):
        next(iterator)
    del iterator

# A dataset too small to share is refused before training if it can be counted. Else the rank without a batch fails.
tiny = tf.data.Dataset.range(2).batch(1)
assert "'tiny' has 2 batches for 3 ranks" in refused(tiny, job_name="tiny")
tiny = data.distribute(tiny.filter(lambda n: n[0] >= 0), job_name="tiny, filtered")
try:
    total = sum(1 for _ in tiny)
    assert rank < 2 and total == 1
except tf.errors.OpError as error:
    assert rank == 2 and "got no batch of tiny, filtered" in str(error), error

# An iterator fails once a newer one has overtaken it. The newer one continues, even if a thread waits for the older.
for uneven in ("drop", "pad"):
    overtaken = stream(f"overtaken, {uneven}", uneven, is_counted=False)
    first = iter(overtaken)
    next(first)
    assert on_all_ranks(sum(1 for _ in overtaken)) == [10 + (uneven == "pad")] * size
    try:
        for _ in range(20):
            next(first)
        raise AssertionError("two at once")
    except tf.errors.OpError as error:
        assert "a second iterator over" in str(error), error
    except StopIteration:
        pass  # the older iterator was waiting for a batch when the newer one began
    del first


def all_of(dataset, **how):
    parts = [np.asarray(batch) for batch in data.distribute(dataset, **how)]
    return len(parts), np.asarray(hvd.allgather(tf.constant(np.concatenate(parts)))).tolist()


# Datasets that differ between ranks are refused, whatever differs. With shared=False each rank reads all of its own
# dataset, and all ranks end together.
mine = tf.data.Dataset.range(90 + rank * 5).shard(size, rank).batch(5)
assert "different datasets" in refused(mine, job_name="sharded by rank")
counted = tf.data.Dataset.range(40)
swapped = counted.take(10).skip(5) if rank else counted.skip(5).take(10)
assert "different datasets" in refused(swapped.batch(5), job_name="swapped")
ordered = counted.shuffle(40, seed=rank, reshuffle_each_iteration=False).take(10)
assert "different datasets" in refused(ordered.batch(5), job_name="ordered")
steps, everyones = all_of(mine, shared=False, job_name="own")
assert on_all_ranks(steps) == [7] * size
assert set(everyones) >= set(range(90))

# Datasets count as equal even if ranks set different seeds, as they may for dropout.
tf.random.set_seed(42 + rank)
_, everyones = all_of(counted.shuffle(40).batch(4), uneven="keep", job_name="seeded")
assert sorted(everyones) == list(range(40))

# A generator that every rank would run alike is refused. One that yields only a rank's own elements ends on all ranks
# at the same step.
generated = tf.data.Dataset.from_generator(lambda: iter(range(9)), output_signature=tf.TensorSpec([], tf.int64))
assert "every rank runs the whole generator" in refused(generated.batch(3), job_name="generated")
generated = tf.data.Dataset.from_generator(
    lambda: iter(range(rank, 10, size)), output_signature=tf.TensorSpec([], tf.int64)
)
steps, everyones = all_of(generated.batch(1), shared=False, job_name="generated by rank")
assert on_all_ranks(steps) == [4] * size
assert set(everyones) == set(range(10))

# A rank that still reads after the scripts of the other ranks have ended does not wait for them.
last = stream("alone", "pad", is_counted=False)
if rank == 0:
    time.sleep(1)
    assert sum(1 for _ in last) == 11
print("all promises kept", flush=True)
