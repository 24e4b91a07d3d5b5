"""Train with mixed_float16: layers compute with 16-bit numbers. All ranks change the loss scale together."""

import headrace.tensorflow.horovod_keras as hvd
import keras
import tensorflow as tf
from digits import QUIET, datasets, loss, network, usual

hvd.init()
EPOCHS = 12
keras.mixed_precision.set_global_policy("mixed_float16")

train, held_out = datasets()
if hvd.rank() == 1:
    # In each epoch, one batch of rank 1 makes its gradients overflow. All ranks then skip this step.
    train = train.enumerate().map(lambda n, batch: (tf.where(n == 5, 6e4, batch[0]), batch[1]))

model = network()
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.003)), loss(), metrics=["accuracy"])
model.fit(train, epochs=EPOCHS, validation_data=held_out, callbacks=usual(train), **QUIET)
