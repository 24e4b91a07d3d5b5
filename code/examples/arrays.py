"""Train on arrays that the script holds in memory. Each host gets them once, as files; workers read blocks of rows."""

import headrace.tensorflow.horovod_keras as hvd
import keras
from digits import BATCH, QUIET, load, loss, network, usual
from headrace.tensorflow import data

hvd.init()
EPOCHS = 12

(x, y), held_out = load()
train = data.from_arrays((x, y)).shuffle(len(x)).repeat().batch(BATCH)  # as from_tensor_slices, but for any size
train = data.distribute(train).prefetch(2)
held_out = data.split_by_rank(data.from_arrays(held_out).batch(BATCH))
steps_per_epoch = len(x) // (BATCH * hvd.size())

model = network()
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.003)), loss(), metrics=["accuracy"])
model.fit(
    train, epochs=EPOCHS, steps_per_epoch=steps_per_epoch, validation_data=held_out, callbacks=usual(train), **QUIET
)
