"""Half the numbers' width: mixed_float16, whose loss scale all ranks change together."""

import headrace.tensorflow.horovod_keras as hvd
import keras
import tensorflow as tf
from digits import BATCH, load, loss, network
from headrace.tensorflow import callbacks, data

hvd.init()
EPOCHS = 12
keras.mixed_precision.set_global_policy("mixed_float16")

(x, y), held_out = load()
train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).batch(BATCH)
train = data.distribute(train).prefetch(2)
held_out = data.split_by_rank(tf.data.Dataset.from_tensor_slices(held_out).batch(BATCH))
if hvd.rank() == 1:
    # Now and then a batch of one rank overflows: its step is skipped, on all ranks.
    train = train.enumerate().map(lambda n, batch: (tf.where(n == 5, 6e4, batch[0]), batch[1]))

model = network()
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.003)), loss(), metrics=["accuracy"])
model.fit(
    train,
    epochs=EPOCHS,
    validation_data=held_out,
    verbose=0,
    shuffle=False,
    callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        callbacks.Measure(train, BATCH),
    ],
)
