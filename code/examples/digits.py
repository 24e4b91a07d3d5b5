"""What the examples share: 1,797 handwritten digits, as arrays of 8 × 8 pixels, and a small network for them."""

import keras
import numpy as np
from sklearn.datasets import load_digits

BATCH = 32


def load():
    """`(x, y), (held_x, held_y)`: float32 features between 0 and 1, shape [n, 64], and int32 labels."""
    table = load_digits()
    order = np.random.default_rng(0).permutation(len(table.target))
    x, y = (table.data[order] / 16).astype("float32"), table.target[order].astype("int32")
    return (x[:1437], y[:1437]), (x[1437:], y[1437:])


def network(features=64):
    """Not compiled."""
    layers = [keras.Input((features,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10, dtype="float32")]
    return keras.Sequential(layers)


def loss():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
