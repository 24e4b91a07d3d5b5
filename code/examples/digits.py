"""Parts that the examples share: 1,797 handwritten digits as arrays of 8 × 8 pixels, and a small network for them."""

import headrace.tensorflow.horovod_keras as hvd
import keras
import numpy as np
import tensorflow as tf
from headrace.tensorflow import callbacks, data
from sklearn.datasets import load_digits

BATCH = 32
QUIET = {"verbose": 0, "shuffle": False}
"""Arguments for `fit`: no progress bar (headrace logs a line an epoch), no shuffling (tf.data does the shuffling)."""


def load():
    """Return `(x, y), (held_x, held_y)`: float32 features between 0 and 1, shape [n, 64], and int32 labels."""
    table = load_digits()
    order = np.random.default_rng(0).permutation(len(table.target))
    x, y = (table.data[order] / 16).astype("float32"), table.target[order].astype("int32")
    return (x[:1437], y[:1437]), (x[1437:], y[1437:])


def datasets():
    """Return two datasets: one to train on, which the ranks share, and this rank's part of the held-out data."""
    (x, y), held_out = load()
    train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).batch(BATCH)
    held_out = tf.data.Dataset.from_tensor_slices(held_out).batch(BATCH)
    return data.distribute(train).prefetch(2), data.split_by_rank(held_out)


def usual(train):
    """Return the Horovod callbacks that `fit` needs on several ranks, and headrace's callback that measures steps."""
    return [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        callbacks.Measure(train, BATCH),
    ]


def network(features=64):
    """Return a small classifier, not yet compiled."""
    layers = [keras.Input((features,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10, dtype="float32")]
    return keras.Sequential(layers)


def loss():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
