"""Arrays in memory: they travel to the workers once, whatever their size, and are handed out in blocks."""

import headrace.tensorflow.horovod_keras as hvd
import keras
from digits import BATCH, load, loss, network
from headrace.tensorflow import callbacks, data

hvd.init()
EPOCHS = 12

(x, y), held_out = load()
train = data.from_arrays((x, y)).shuffle(len(x)).repeat().batch(BATCH)  # from_tensor_slices, for arrays of any size
train = data.distribute(train).prefetch(2)
held_out = data.split_by_rank(data.from_arrays(held_out).batch(BATCH))
steps_per_epoch = len(x) // (BATCH * hvd.size())

model = network()
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.003)), loss(), metrics=["accuracy"])
model.fit(
    train,
    epochs=EPOCHS,
    steps_per_epoch=steps_per_epoch,
    validation_data=held_out,
    verbose=0,
    shuffle=False,
    callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        callbacks.Measure(train, BATCH),
    ],
)
