"""Run on three ranks by test_horovod.py: streams with an end, in local mode, end for all ranks at once."""

import os
import time

os.environ.pop("HEADRACE_TF_DATA_MODE", None)

import headrace.tensorflow.horovod_keras as hvd
import numpy as np
import tensorflow as tf
from headrace.tensorflow import data
from refusal import refused

hvd.init()
rank, size = hvd.rank(), hvd.size()
ELEMENTS, BATCH = 1000, 32


def on_all_ranks(number):
    return np.asarray(hvd.allgather(tf.constant([number], tf.int64))).tolist()


def stream(name, uneven, dataset=None, ahead=2):
    dataset = tf.data.Dataset.range(ELEMENTS) if dataset is None else dataset
    return data.distribute(dataset.shuffle(50).batch(BATCH), uneven=uneven, job_name=name).prefetch(ahead)


for uneven, steps in (("pad", 11), ("drop", 10)):
    epochs = stream(uneven, uneven)
    for _ in range(3):
        assert on_all_ranks(sum(1 for _ in epochs)) == [steps] * size, uneven
    # A pass that is given up does not disturb the next.
    assert on_all_ranks(sum(1 for _ in epochs.take(3))) == [3] * size
    assert on_all_ranks(sum(1 for _ in epochs)) == [steps] * size

# Who reads ahead waits for the batch that another will never take, and hears that it has gone.
for uneven in ("drop", "pad"):
    epochs = stream(f"given up, {uneven}", uneven, ahead=2 if rank else 0)
    for _ in range(5):
        assert on_all_ranks(sum(1 for _ in epochs.take(3))) == [3] * size

seen = np.concatenate(list(stream("kept", "keep").as_numpy_iterator()))
counts = np.bincount(np.asarray(hvd.allgather(tf.constant(seen))), minlength=ELEMENTS)
assert (counts == 1).all(), "each element once, over all ranks"

# Nobody knows how many elements a filter leaves; files are fewer than ranks want.
filtered = tf.data.Dataset.range(ELEMENTS).filter(lambda n: n % 7 > 2)
lengths = on_all_ranks(sum(1 for _ in stream("filtered", "pad", filtered)))
assert len(set(lengths)) == 1 and lengths[0] >= 6

# The end of an iterator takes no time, wherever in its pass it is.
took = []
for number in range(40):
    iterator = iter(stream(f"deleted {number}", "pad") if number < 4 else epochs)
    for _ in range(number % 5):
        next(iterator)
    began = time.perf_counter()
    del iterator
    took.append(time.perf_counter() - began)
assert np.median(took) < 0.2 and max(took) < 5, f"iterators took up to {max(took):.3f} s to end"

# Too small to share: said at once, by the rank that has none.
tiny = data.distribute(tf.data.Dataset.range(2).batch(1), job_name="tiny")
try:
    total = sum(1 for _ in tiny)
    assert rank < 2 and total == 1
except tf.errors.OpError as error:
    assert rank == 2 and "got no batch of 'tiny'" in str(error), error

# An iterator that another has overtaken says so; the newer one goes on, though a thread may still wait for the first.
for uneven in ("drop", "pad"):
    overtaken = stream(f"overtaken, {uneven}", uneven)
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
        pass  # it waited when the other began
    del first


def all_of(dataset, **how):
    parts = [np.asarray(batch) for batch in data.distribute(dataset, **how)]
    return len(parts), np.asarray(hvd.allgather(tf.constant(np.concatenate(parts)))).tolist()


# Each rank with another dataset: refused, in whatever differs; or each has all of its own, and they end together.
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

# Seeds that differ between ranks, as for dropout, do not make another dataset.
tf.random.set_seed(42 + rank)
_, everyones = all_of(counted.shuffle(40).batch(4), uneven="keep", job_name="seeded")
assert sorted(everyones) == list(range(40))

# A generator that all would run alike is refused; one that leaves out other ranks' elements ends on all at once.
generated = tf.data.Dataset.from_generator(lambda: iter(range(9)), output_signature=tf.TensorSpec([], tf.int64))
assert "every rank runs the generator" in refused(generated.batch(3), job_name="generated")
generated = tf.data.Dataset.from_generator(
    lambda: iter(range(rank, 10, size)), output_signature=tf.TensorSpec([], tf.int64)
)
steps, everyones = all_of(generated.batch(1), shared=False, job_name="generated by rank")
assert on_all_ranks(steps) == [4] * size
assert set(everyones) == set(range(10))

# Who reads on when the others' scripts have ended waits for nobody.
last = stream("alone", "pad")
if rank == 0:
    time.sleep(1)
    began = time.perf_counter()
    assert sum(1 for _ in last) == 11
    assert time.perf_counter() - began < 5
print("all promises kept", flush=True)
