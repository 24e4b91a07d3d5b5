"""Train for about `--epochs` × 2 s at a steady pace with the data service, for tests that break the job."""

import argparse
import time

import headrace.tensorflow.horovod_keras as hvd
import keras
import tensorflow as tf
from headrace.tensorflow import callbacks, data

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--epochs", type=int, default=8)
args, _ = parser.parse_known_args()
STEPS, PAUSE_S = 40, 0.04


class Pace(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(PAUSE_S)


hvd.init()
train = tf.data.Dataset.range(10_000).map(lambda n: (tf.random.normal([8]), n % 2)).repeat().batch(16)
train = data.distribute(train).prefetch(2)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(2)])
model.compile(
    hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    jit_compile=False,
)
model.fit(
    train,
    epochs=args.epochs,
    steps_per_epoch=STEPS,
    verbose=0,
    shuffle=False,
    callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        callbacks.Measure(train, 16, log_every=5),
        callbacks.Checkpoint(),
        Pace(),
    ],
)
