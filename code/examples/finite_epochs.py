"""Train on a finite dataset without steps_per_epoch. All ranks end an epoch after the same number of batches."""

import headrace.tensorflow.horovod_keras as hvd
import keras
import tensorflow as tf
from digits import BATCH, QUIET, load, loss, network, usual
from headrace.tensorflow import data

hvd.init()
EPOCHS = 12

(x, y), held_out = load()
train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).batch(BATCH)
train = data.distribute(train).prefetch(2)
held_out = data.split_by_rank(tf.data.Dataset.from_tensor_slices(held_out).batch(BATCH))

model = network()
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.003)), loss(), metrics=["accuracy"])
model.fit(train, epochs=EPOCHS, validation_data=held_out, callbacks=usual(train), **QUIET)
