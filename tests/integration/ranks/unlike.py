"""Train on two ranks that differ. Some of the differences spoil the training, and others are harmless.

test_unlike_ranks.py runs this script. Arguments: the cases, by the names of their functions.
"""

import os
import sys
import time

os.environ.pop("HEADRACE_TF_DATA_MODE", None)

import headrace.tensorflow.horovod_keras as hvd
import keras
import numpy as np
import tensorflow as tf
from headrace.tensorflow import callbacks, data

hvd.init()
rank = hvd.rank()
rows = np.arange(192, dtype="float32")[:, None] / 192
Data = tf.data.Dataset


def stream(end, name):
    dataset = Data.from_tensor_slices((rows, rows)).shuffle(192)
    batches = (dataset if end else dataset.repeat()).batch(4)
    return data.distribute(batches, job_name=name).prefetch(2)


def model(seed):
    keras.utils.set_random_seed(seed)
    made = keras.Sequential([keras.Input((1,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    made.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    return made


def fit(made, train, *more, steps=None, epochs=2):
    usual = [hvd.callbacks.MetricAverageCallback(), callbacks.Measure(train, 4)]
    made.fit(train, epochs=epochs, steps_per_epoch=steps, verbose=0, callbacks=[*more, *usual])


def averages_no_gradients():
    apart = model(rank)
    apart.compile("sgd", "mse")
    train = stream(end=True, name="train")
    apart.fit(train, epochs=2, verbose=0, callbacks=[callbacks.Measure(train, 4)])


def evaluates_held_out_data():
    held_out = data.distribute(
        Data.from_tensor_slices((rows[:28], rows[:28])).batch(4), job_name="held_out", uneven="keep"
    )

    class Total(keras.metrics.Sum):
        def update_state(self, wanted, got, sample_weight=None):
            super().update_state(tf.ones_like(got))

    class SlowAtFirst(keras.callbacks.Callback):
        waits_s = [6]

        def on_test_batch_end(self, batch, logs=None):
            if self.waits_s:
                time.sleep(self.waits_s.pop())

    class StopsOneRank(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            self.model.stop_evaluating = rank == 0

    made = model(0)
    usual = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    held_out = held_out.prefetch(8)
    for at_once in (1, 8):
        optimizer = hvd.DistributedOptimizer("sgd")
        made.compile(optimizer, "mse", metrics=[Total(name="rows")], steps_per_execution=at_once)
        history = made.fit(
            stream(end=True, name="train"),
            epochs=2,
            verbose=0,
            validation_data=held_out,
            callbacks=[*usual, SlowAtFirst()],
        ).history
        assert history["val_rows"] == [28, 28], history
        alone = made.evaluate(rows[:28], rows[:28], verbose=0)[0]
        assert abs(history["val_loss"][-1] / alone - 1) < 1e-5, (history, alone)
        predicted = hvd.allgather(made.predict(held_out.map(lambda inputs, _: inputs), verbose=0)).numpy()
        assert len(predicted) == len(np.unique(predicted)) == 28, predicted
    made.compile(optimizer, "mse")
    made.evaluate(stream(end=True, name="stopped"), verbose=0, callbacks=[*usual[1:], StopsOneRank()])
    # The next pass of the training stream is prefetched during an evaluation. The ranks have 5 and 9 batches.
    slow = Data.from_tensor_slices((rows, rows)).batch(4).take(5 + 4 * rank)
    slow = data.distribute(slow.map(lambda *rows: rows), shared=False, job_name="slow").repeat().prefetch(8)
    made.fit(slow, steps_per_epoch=8, epochs=5, verbose=0, validation_data=held_out, callbacks=usual)


def begins_apart():
    fit(model(rank), stream(end=True, name="train"))


def has_other_rates():
    class Slower(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.optimizer.learning_rate = 0.01 / (1 + rank)

    fit(model(0), stream(end=True, name="train"), Slower(), epochs=3)


def looks_and_evaluates():
    train, held_out = stream(end=False, name="train"), stream(end=False, name="held_out")
    for _ in train.take(1):
        pass

    class Looks(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 3 and rank == 0:
                for inputs, _ in train.take(2):
                    print("a batch:", inputs.shape)

        def on_epoch_end(self, epoch, logs=None):
            if rank == 0:
                self.model.evaluate(held_out, steps=20, verbose=0)

    fit(model(0), train, Looks(), steps=24)
    made, schedule = model(0), keras.optimizers.schedules.ExponentialDecay(0.01, 10, 0.9)
    made.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(schedule)), "mse")
    ended = stream(end=True, name="ended")
    fit(made, ended, hvd.callbacks.BroadcastGlobalVariablesCallback(0))
    fit(made, ended)


for case in sys.argv[1:]:
    globals()[case]()
hvd.allreduce(tf.constant(1.0))
print("all promises kept", flush=True)
