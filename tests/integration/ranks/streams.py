"""Check on two ranks, with a data service, that the ranks can share a stream or have a stream each.
test_horovod.py runs this script."""

import os
import sys
import time
from pathlib import Path

os.environ["HEADRACE_TF_DATA_MODE"] = "service"
os.environ["HEADRACE_DISPATCHER"] = sys.argv[1]

import headrace.tensorflow.horovod_keras as hvd
import numpy as np
import tensorflow as tf
from headrace.tensorflow import data
from refusal import refused

hvd.init()
rank, size = hvd.rank(), hvd.size()


def numbers_of(dataset):
    return sorted(int(number) for batch in dataset.as_numpy_iterator() for number in batch)


mine = tf.data.Dataset.range(rank * 100, rank * 100 + 60).batch(4)
for exact in (True, False):
    assert "different datasets" in refused(mine, exact=exact, job_name=f"shared {exact}")

own = data.distribute(mine, shared=False, job_name="own")
assert numbers_of(own) == list(range(rank * 100, rank * 100 + 60)), "each rank has the whole of its own dataset"

# A fault in the dataset of one rank ends all ranks, with that rank's reason.
sound = tf.data.Dataset.range(40).batch(4)
faulty = tf.data.Dataset.range(40).shuffle(9).take(8).batch(4)
assert "after this operation (take)" in refused(sound if rank == 0 else faulty, shared=False, job_name="one is faulty")

together = numbers_of(data.distribute(tf.data.Dataset.range(64).batch(4), uneven="keep", job_name="together"))
everyones = np.asarray(hvd.allgather(tf.constant(together, tf.int64))).tolist()
assert sorted(everyones) == list(range(64)), "ranks that share a stream split it"

# Arrays are mapped from files.
images = np.arange(3_000 * 1_600).astype(">f4").reshape(3_000, 1_600)  # big-endian, as in FITS files
rows = data.distribute(data.from_arrays((images, np.arange(3_000))).batch(50), uneven="keep", job_name="arrays")
labels = [
    int(label)
    for batch, numbers in rows.as_numpy_iterator()
    for image, label in zip(batch, numbers, strict=True)
    if image[0] == label * 1_600
]
everyones = np.asarray(hvd.allgather(tf.constant(labels, tf.int64))).tolist()
assert sorted(everyones) == list(range(3_000)), "pairs of arrays stay together"
assert list(Path(os.environ["TMPDIR"], "arrays").iterdir()), "arrays were not mapped"

# A short stream has a batch for each rank, whichever rank comes first.
short = data.distribute(tf.data.Dataset.range(24).batch(4), job_name="short")
for number in range(6):
    time.sleep(0.3 * (rank == number % 2))
    everyones = np.asarray(hvd.allgather(tf.constant(numbers_of(short), tf.int64))).tolist()
    assert set(everyones) == set(range(24))
assert "1 batches for 2 ranks" in refused(tf.data.Dataset.range(4).batch(4), job_name="too short")

# An iterator that is given up ends at once, wherever in its pass it is.
batches = data.distribute(tf.data.Dataset.range(10_000).repeat().batch(16), job_name="given up")
took = []
ENDED_S = 45  # each takes a tenth of a second; one that waits for its worker takes a minute
for number in range(40):
    iterator = iter(batches)
    for _ in range(number % 5 + 1):
        next(iterator)
    began = time.perf_counter()
    del iterator
    took.append(time.perf_counter() - began)
assert max(took) < ENDED_S, f"iterators took up to {max(took):.3f} s to end"
print("all promises kept", flush=True)
