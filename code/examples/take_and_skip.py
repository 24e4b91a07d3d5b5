"""Hold out a part of the data for validation: split it with take and skip before it is shuffled."""

import headrace.tensorflow.horovod_keras as hvd
import keras
import tensorflow as tf
from digits import BATCH, QUIET, load, loss, network, usual
from headrace.tensorflow import data

hvd.init()
EPOCHS = 12

(x, y), _ = load()
examples = tf.data.Dataset.from_tensor_slices((x, y))
train = data.distribute(examples.skip(287).shuffle(len(x)).batch(BATCH)).prefetch(2)
held_out = data.distribute(examples.take(287).batch(BATCH), job_name="held_out", uneven="keep")

model = network()
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.003)), loss(), metrics=["accuracy"])
model.fit(train, epochs=EPOCHS, validation_data=held_out, callbacks=usual(train), **QUIET)
