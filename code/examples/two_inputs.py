"""Two datasets side by side: zip them, then shuffle the pairs."""

import headrace.tensorflow.horovod_keras as hvd
import keras
import tensorflow as tf
from digits import BATCH, QUIET, load, loss, usual
from headrace.tensorflow import data

hvd.init()
EPOCHS = 12

(x, y), held_out = load()
features, labels = tf.data.Dataset.from_tensor_slices(x), tf.data.Dataset.from_tensor_slices(y)


def halves(pixels, label):
    return (pixels[..., :32], pixels[..., 32:]), label


train = tf.data.Dataset.zip((features, labels)).shuffle(len(x)).batch(BATCH).map(halves)
train = data.distribute(train).prefetch(2)
held_out = data.split_by_rank(tf.data.Dataset.from_tensor_slices(held_out).batch(BATCH).map(halves))

inputs = [keras.Input((32,)), keras.Input((32,))]
hidden = keras.layers.Dense(64, "relu")(keras.layers.Concatenate()(inputs))
model = keras.Model(inputs, keras.layers.Dense(10)(hidden))
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.003)), loss(), metrics=["accuracy"])
model.fit(train, epochs=EPOCHS, validation_data=held_out, callbacks=usual(train), **QUIET)
