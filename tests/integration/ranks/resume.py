"""Check on two ranks that a stop request ends a job in mid-epoch. A second job must continue at the same step and data.
test_horovod.py runs this script."""

import contextlib
import sys
from pathlib import Path

import headrace.tensorflow.horovod_keras as hvd
import keras
import numpy as np
import tensorflow as tf
from headrace.cluster.run_files import STOP_REQUEST
from headrace.tensorflow import data
from headrace.tensorflow.callbacks import Checkpoint
from stopping import signals_beside

EPOCHS, STEPS, BATCH, STOPPED_AT = 3, 60, 8, 25
ELEMENTS = STEPS * BATCH * 2

hvd.init()
folder = Path(sys.argv[1])
signals = signals_beside(folder)


class Stopped(Exception):
    pass


class Stop(keras.callbacks.Callback):
    """A callback that requests a stop in mid-epoch. Rank 0 makes the file that a launcher makes when it gets a
    signal. One step later, all ranks end."""

    def on_train_batch_begin(self, batch, logs=None):
        if self.params["epochs"] and self.epoch == 1 and batch == STOPPED_AT - 1 and hvd.rank() == 0:
            (signals / STOP_REQUEST).touch()
        if self.epoch == 1 and batch == STOPPED_AT:
            raise Stopped

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch


class Steps(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.made = []

    def on_train_batch_end(self, batch, logs=None):
        self.made[-1] += 1

    def on_epoch_begin(self, epoch, logs=None):
        self.made.append(0)


def run(*more):
    """Train. Return the first epoch, each epoch's steps, the elements that this rank trained on, and the `Shards`."""
    keras.utils.set_random_seed(hvd.rank())
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam()), "mse", jit_compile=False)
    checkpoint = Checkpoint(folder, kept=9)
    shards = data.Shards.of_indices(ELEMENTS, checkpoint, seed=3, block=32)
    stream = shards.shuffle(64).batch(BATCH, drop_remainder=True)
    train = data.distribute(stream).map(lambda index: (tf.cast(index, tf.float32)[:, None],) * 2)
    trained, arrive = [], shards.consumed

    def consumed(batches):
        trained.extend(shards._arrived[0].tolist())
        arrive(batches)

    shards.consumed = consumed
    steps = Steps()
    first = checkpoint.restore(model)
    given = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), steps, checkpoint, *more]
    with contextlib.suppress(Stopped):
        model.fit(
            train.prefetch(4),
            epochs=EPOCHS,
            initial_epoch=first,
            steps_per_epoch=STEPS,
            verbose=0,
            shuffle=False,
            callbacks=given,
        )
    return first, steps.made, np.asarray(trained, np.int64), shards


_, steps, before, _ = run(Stop())
assert steps == [STEPS, STOPPED_AT], steps
before_0 = hvd.broadcast(tf.constant(before), 0).numpy()
(signals / STOP_REQUEST).unlink(missing_ok=True)  # by now rank 0 has surely seen it
before_all = hvd.allgather(tf.constant(before)).numpy()
assert len(np.unique(before_all)) == len(before_all)

first, steps, after, shards = run()
assert first == 1
assert steps == [STEPS - STOPPED_AT, STEPS], steps
after_all = hvd.allgather(tf.constant(after)).numpy()
assert len(np.unique(after_all)) == len(after_all)
# No element of rank 0 is repeated. An element of rank 1 may be, if it came after rank 1's last report to rank 0.
assert not np.isin(before_0, after_all).any()
assert np.isin(before_all, after_all).sum() <= STOPPED_AT * BATCH
assert shards._repeated == STOPPED_AT * BATCH
# Nothing is skipped: all elements of the finished epochs have been trained on, except those in the shuffle buffer.
done = np.concatenate([before_all, after_all])
if hvd.rank() == 0:
    shards.ledger.add(done)
    assert shards.ledger.mark >= 2 * (ELEMENTS // 32) - 6, shards.ledger.mark


def run_unknown(*more):
    """Train on data of unknown length. Return the first epoch, each epoch's steps, and the sum of all jobs' steps."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam()), "mse", jit_compile=False)
    checkpoint, steps = Checkpoint(folder.parent / "unknown"), Steps()
    train = tf.data.Dataset.range(STEPS).map(lambda n: (tf.cast([[n]], tf.float32),) * 2).filter(lambda *_: True)
    first = checkpoint.restore(model)
    given = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), steps, checkpoint, *more]
    with contextlib.suppress(Stopped):
        model.fit(train, epochs=EPOCHS, initial_epoch=first, verbose=0, callbacks=given)
    return first, steps.made, int(model.optimizer.iterations)


assert run_unknown(Stop()) == (0, [STEPS, STOPPED_AT], STEPS + STOPPED_AT)
hvd.allreduce(tf.constant(0.0))
(signals / STOP_REQUEST).unlink(missing_ok=True)
assert run_unknown() == (1, [STEPS - STOPPED_AT, STEPS], EPOCHS * STEPS)
print("all promises kept")
