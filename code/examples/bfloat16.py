"""Train with mixed_bfloat16: layers compute with 16-bit numbers. Unlike mixed_float16, it needs no loss scale."""

import headrace.tensorflow.horovod_keras as hvd
import keras
from digits import QUIET, datasets, loss, network, usual

hvd.init()
EPOCHS = 12
keras.mixed_precision.set_global_policy("mixed_bfloat16")

train, held_out = datasets()

model = network()
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.003)), loss(), metrics=["accuracy"])
model.fit(train, epochs=EPOCHS, validation_data=held_out, callbacks=usual(train), **QUIET)
