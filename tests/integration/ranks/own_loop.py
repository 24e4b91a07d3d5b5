"""Check on two ranks that a stop request ends a custom training loop in mid-epoch. A second run must continue the loop.
test_horovod.py runs this script."""

import sys
from pathlib import Path

import headrace.tensorflow.horovod_keras as hvd
import keras
import numpy as np
import tensorflow as tf
from headrace.cluster.run_files import STOP_REQUEST
from headrace.tensorflow import data
from headrace.tensorflow.callbacks import Checkpoint, Training
from stopping import signals_beside

EPOCHS, STEPS, BATCH, STOPPED_AT = 3, 40, 8, 25
ELEMENTS = STEPS * BATCH * 2  # of both ranks in an epoch

hvd.init()
folder = Path(sys.argv[1])
signals = signals_beside(folder)


def run(name, dataset_of, steps, stopped):
    """Train, and return the steps made in each epoch and the numbers that this rank trained on."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    checkpoint = Checkpoint(folder / name, kept=9)
    dataset = dataset_of(checkpoint)
    training = Training(model, keras.optimizers.SGD(0.0), BATCH, checkpoint=checkpoint)
    made, seen = {}, []
    for epoch in training.epochs(EPOCHS):
        made[epoch] = 0
        for numbers in training.steps(dataset, steps):
            if stopped and epoch == 1 and made[epoch] == STOPPED_AT:
                return made, np.concatenate(seen)
            seen.append(np.ravel(numbers))
            made[epoch] += 1
            if stopped and epoch == 1 and made[epoch] == STOPPED_AT and hvd.rank() == 0:
                (signals / STOP_REQUEST).touch()
        training.end_epoch()
    return made, np.concatenate(seen)


def both(name, dataset_of, steps=None):
    before = run(name, dataset_of, steps, stopped=True)
    hvd.allreduce(tf.constant(0.0))
    (signals / STOP_REQUEST).unlink(missing_ok=True)
    hvd.allreduce(tf.constant(0.0))
    return before, run(name, dataset_of, steps, stopped=False)


def shards(checkpoint):
    made = data.Shards.of_indices(ELEMENTS, checkpoint, seed=3, block=16)
    return data.distribute(made.batch(BATCH, drop_remainder=True)).prefetch(4)


(steps_before, before), (steps_after, after) = both("shards", shards, STEPS)
assert steps_before == {0: STEPS, 1: STOPPED_AT} and steps_after == {1: STEPS - STOPPED_AT, 2: STEPS}
before_all, after_all = (hvd.allgather(tf.constant(each)).numpy() for each in (before, after))
of_first_epoch = hvd.allgather(tf.constant(before[: STEPS * BATCH])).numpy()
assert len(np.unique(of_first_epoch)) == ELEMENTS, "the first epoch lacks elements"
counts = np.bincount(np.concatenate([before_all, after_all]), minlength=ELEMENTS)
# Rank 0 knows all elements of its own steps, but only those elements of rank 1 that were reported before the stop.
assert counts.sum() == EPOCHS * ELEMENTS
assert (counts == EPOCHS).sum() >= ELEMENTS - 2 * STOPPED_AT * BATCH, np.bincount(counts)


def of_unknown_length(_):
    return tf.data.Dataset.range(STEPS).map(lambda n: tf.cast([[n]], tf.float32)).filter(lambda _: True)


(steps_before, _), (steps_after, _) = both("unknown", of_unknown_length)
assert steps_before == {0: STEPS, 1: STOPPED_AT} and steps_after == {1: STEPS - STOPPED_AT, 2: STEPS}
print("all promises kept", flush=True)
