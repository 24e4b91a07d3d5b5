"""Check on two ranks that each epoch has `len(stream)` steps on both ranks, even if one rank has fewer batches.

test_horovod.py runs this script. Argument: the dispatcher's address. Without it, the ranks read the data themselves.
"""

import os
import sys

os.environ["HEADRACE_TF_DATA_MODE"] = "service" if sys.argv[1:] else "local"
os.environ["HEADRACE_DISPATCHER"] = sys.argv[1] if sys.argv[1:] else ""

import headrace.tensorflow.horovod_keras as hvd
import keras
import numpy as np
import tensorflow as tf
from headrace.tensorflow import data

hvd.init()
EPOCHS, BATCH = 4, 100
ELEMENTS = 1990 if sys.argv[1:] else 2017


class Counting(keras.Sequential):
    def train_step(self, batch):
        traces.append(batch)
        taken.scatter_nd_add(batch[1][:, None], tf.ones_like(batch[1], tf.int32))
        return super().train_step((batch[0], tf.cast(batch[1], tf.float32)))


class Steps(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.made = [*getattr(self, "made", []), 0]

    def on_train_batch_end(self, batch, logs=None):
        self.made[-1] += 1


def made_in(batches, optimizer, steps=None):
    """Train, and return the steps of each epoch."""
    model, counted = Counting([keras.Input((1,)), keras.layers.Dense(1)]), Steps()
    model.compile(optimizer, "mse", jit_compile=False)
    model.fit(batches, epochs=EPOCHS, steps_per_epoch=steps, verbose=0, callbacks=[counted])
    return counted.made


def rows_of(elements=ELEMENTS):
    return tf.data.Dataset.range(elements).shuffle(elements).map(lambda n: (tf.ones([1]), n)).batch(BATCH)


traces, taken = [], tf.Variable(tf.zeros([ELEMENTS], tf.int32))
train = data.distribute(rows_of())
steps = -(-len(rows_of()) // hvd.size())
assert len(train) == steps, "len() returns the number of batches that this rank has"
for given in (None, len(train)):
    traces.clear()
    taken.assign(tf.zeros_like(taken))
    sgd = hvd.DistributedOptimizer(keras.optimizers.SGD(0.0))
    assert made_in(train.prefetch(2), sgd, given) == [steps] * EPOCHS
    assert len(traces) == 1, "TensorFlow traces the step once: a trace of a large model takes seconds"
    everyones = np.asarray(hvd.allreduce(taken, op=hvd.Sum))
    assert everyones.min() >= EPOCHS, "every epoch has every element"
    again = EPOCHS * (steps * hvd.size() - len(rows_of()))
    assert everyones.sum() <= EPOCHS * ELEMENTS + again * BATCH, "no more than a batch of each epoch comes twice"

# With steps_per_epoch below len(stream), each epoch has as many steps as with a plain dataset of the same length.
fewer = len(rows_of()) // hvd.size()
plain = made_in(rows_of(steps * BATCH), keras.optimizers.SGD(0.0), fewer)
sgd = hvd.DistributedOptimizer(keras.optimizers.SGD(0.0))
assert made_in(train.prefetch(2), sgd, fewer) == plain, plain
dropping = data.distribute(rows_of(), uneven="drop")
sgd = hvd.DistributedOptimizer(keras.optimizers.SGD(0.0))
assert made_in(dropping, sgd, fewer) == [fewer] * EPOCHS

# Each held-out element comes once.
for held_out in (
    data.split_by_rank(tf.data.Dataset.range(2017).batch(BATCH)),
    data.distribute(tf.data.Dataset.range(2017).batch(BATCH), uneven="keep"),
):
    for _ in range(2):
        own = np.concatenate(list(held_out.as_numpy_iterator()))
        assert sorted(np.asarray(hvd.allgather(tf.constant(own))).tolist()) == list(range(2017))
print("all promises kept", flush=True)
