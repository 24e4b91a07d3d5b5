"""Callbacks that change training: on all ranks, after MetricAverageCallback, so that all decide alike."""

import headrace.tensorflow.horovod_keras as hvd
import keras
import tensorflow as tf
from digits import BATCH, load, loss, network
from headrace.tensorflow import callbacks, data

hvd.init()
EPOCHS = 30

(x, y), held_out = load()
train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).batch(BATCH)
train = data.distribute(train).prefetch(2)
held_out = data.split_by_rank(tf.data.Dataset.from_tensor_slices(held_out).batch(BATCH))

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
        keras.callbacks.ReduceLROnPlateau("val_loss", patience=1),
        keras.callbacks.EarlyStopping("val_loss", patience=3),
        callbacks.Measure(train, BATCH),
    ],
)
