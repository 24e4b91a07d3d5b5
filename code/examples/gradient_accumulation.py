"""Update the weights once for every four batches, with the optimizer's gradient_accumulation_steps."""

import headrace.tensorflow.horovod_keras as hvd
import keras
from digits import QUIET, datasets, loss, network, usual

hvd.init()
EPOCHS = 20

train, held_out = datasets()

model = network()
optimizer = keras.optimizers.Adam(0.01, gradient_accumulation_steps=4)
model.compile(hvd.DistributedOptimizer(optimizer), loss(), metrics=["accuracy"])
model.fit(train, epochs=EPOCHS, validation_data=held_out, callbacks=usual(train), **QUIET)
