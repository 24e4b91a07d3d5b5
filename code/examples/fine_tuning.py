"""Fine-tune in two phases: first a new head on a frozen body, then the whole model at a tenth of the learning rate.

The figures in `summary.json` cover both phases together.
"""

import headrace.tensorflow.horovod_keras as hvd
import keras
from digits import QUIET, datasets, loss, usual

hvd.init()
HEAD_EPOCHS, EPOCHS = 6, 16

train, held_out = datasets()

# This body stands in for a pretrained model, such as one of keras.applications.
body = keras.Sequential([keras.Input((64,)), keras.layers.Dense(256, "relu"), keras.layers.BatchNormalization()])
inputs = keras.Input((64,))
# training=False: the body's moving statistics do not change, not even in the second phase.
model = keras.Model(inputs, keras.layers.Dense(10)(body(inputs, training=False)))

body.trainable = False
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.003)), loss(), metrics=["accuracy"])
model.fit(train, epochs=HEAD_EPOCHS, validation_data=held_out, callbacks=usual(train), **QUIET)

body.trainable = True  # takes effect when the model is compiled again
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.0003)), loss(), metrics=["accuracy"])
model.fit(train, initial_epoch=HEAD_EPOCHS, epochs=EPOCHS, validation_data=held_out, callbacks=usual(train), **QUIET)
