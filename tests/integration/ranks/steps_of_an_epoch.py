"""Run on two ranks by test_horovod.py: a stream that ends, and steps_per_epoch; with workers, or without argument."""

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
EPOCHS, BATCH = 6, 100


class Counting(keras.Sequential):
    def train_step(self, batch):
        taken.scatter_nd_add(batch[1][:, None], tf.ones_like(batch[1], tf.int32))
        return super().train_step((batch[0], tf.cast(batch[1], tf.float32)))


class Steps(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.made = [*getattr(self, "made", []), 0]

    def on_train_batch_end(self, batch, logs=None):
        self.made[-1] += 1


for elements in (1990, 2017, 2100):
    numbers = tf.data.Dataset.range(elements)
    rows = numbers.shuffle(elements).map(lambda n: (tf.ones([1]), n)).batch(BATCH)
    steps = len(rows) // hvd.size()
    taken = tf.Variable(tf.zeros([elements], tf.int32))
    model = Counting([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse", jit_compile=False)
    counted = Steps()
    model.fit(data.distribute(rows).prefetch(2), epochs=EPOCHS, steps_per_epoch=steps, verbose=0, callbacks=[counted])
    assert counted.made == [steps] * EPOCHS, (elements, counted.made)
    everyones = np.asarray(hvd.allreduce(taken, op=hvd.Sum))
    assert everyones.min() >= EPOCHS // 2, f"of {elements} elements some came {everyones.min()} times"

    # Predictions end with the data, whatever their steps.
    held_out = data.distribute(numbers.batch(BATCH).map(lambda n: tf.cast(n, tf.float32)[:, None]))
    for _ in range(2):
        predicted = len(model.predict(held_out, steps=len(rows), verbose=0))
        assert int(hvd.allreduce(tf.constant(predicted), op=hvd.Sum)) == elements
print("all promises kept", flush=True)
