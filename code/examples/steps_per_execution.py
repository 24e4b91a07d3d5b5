"""Make several training steps in one call into TensorFlow. headrace still reports the time of one step."""

import headrace.tensorflow.horovod_keras as hvd
import keras
from digits import QUIET, datasets, loss, network, usual

hvd.init()
EPOCHS = 12

train, held_out = datasets()

model = network()
model.compile(
    hvd.DistributedOptimizer(keras.optimizers.Adam(0.003)), loss(), metrics=["accuracy"], steps_per_execution=4
)
model.fit(train, epochs=EPOCHS, validation_data=held_out, callbacks=usual(train), **QUIET)
