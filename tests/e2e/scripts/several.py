"""Train on elements that name the worker that made them, and record what each rank received."""

import collections
import json
import os
import socket
import time
from pathlib import Path

import headrace.tensorflow.horovod_keras as hvd
import keras
import numpy as np
import tensorflow as tf
from headrace.tensorflow import data

STEPS, MOST_EPOCHS = 50, 300
PAUSE_S = 0.2
"""Seconds of pause after each epoch, so that workers get CPU time. All hosts share the processors here, and workers get
only the CPU time that ranks do not use."""
HOSTS = len(json.loads(os.environ["SM_HOSTS"]))
CONFIG = str(Path(os.environ["SAGEMAKER_BASE_DIR"]) / "input/config/resourceconfig.json")
"""Path of a file that names its host. With namespaces and on SageMaker, each host has its own file at this path."""

hvd.init()


def make(number):
    maker = tf.strings.regex_replace(tf.io.read_file(CONFIG), r'(?s).*"current_host": "([^"]*)".*', r"\1")
    return tf.random.normal([8]), number % 2, maker


made = data.distribute(tf.data.Dataset.range(1_000_000).map(make).batch(4, drop_remainder=True))
makers = collections.Counter()
source = iter(made)


def train():
    for features, labels, hosts in source:
        makers.update(name.decode() for name in hosts.numpy())
        yield features, labels


spec = (tf.TensorSpec((4, 8), tf.float32), tf.TensorSpec((4,), tf.int64))
batches = tf.data.Dataset.from_generator(train, output_signature=spec)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss, jit_compile=False)


class Enough(keras.callbacks.Callback):
    """A callback that ends training once every rank has received elements from every worker."""

    def on_epoch_end(self, epoch, logs=None):
        time.sleep(PAUSE_S)
        seen = hvd.allgather(tf.constant([len(makers)])).numpy()
        self.model.stop_training = bool(seen.min() >= HOSTS)


model.fit(
    batches,
    epochs=MOST_EPOCHS,
    steps_per_epoch=STEPS,
    verbose=0,
    shuffle=False,
    callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), Enough()],
)
flat = np.concatenate([np.ravel(variable.numpy()) for variable in model.weights])
everyones = hvd.allgather(tf.constant(flat[None])).numpy()
found = {
    "makers": makers,
    "local_rank": hvd.local_rank(),
    "host": socket.gethostname(),
    "weights_identical": bool((everyones == everyones[0]).all()) and len(everyones) == hvd.size(),
}
(Path(os.environ["SM_OUTPUT_DATA_DIR"]) / f"rank-{hvd.rank()}.json").write_text(json.dumps(found))
