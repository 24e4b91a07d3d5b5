"""The workers also make the held-out batches, as a second stream.

With uneven="keep", ranks may get unequal numbers of these batches.
"""

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
# Evaluating ranks do not wait for each other, so their parts may be unequal. MetricAverageCallback keeps metrics exact.
held_out = tf.data.Dataset.from_tensor_slices(held_out).batch(BATCH)
held_out = data.distribute(held_out, job_name="held_out", uneven="keep").prefetch(2)

model = network()
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.003)), loss(), metrics=["accuracy"])
model.fit(train, epochs=EPOCHS, validation_data=held_out, callbacks=usual(train), **QUIET)
