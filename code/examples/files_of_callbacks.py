"""Callbacks that write files: on rank 0 alone. Checkpoint is the one to go on from."""

import os

import headrace.tensorflow.horovod_keras as hvd
import keras
import tensorflow as tf
from digits import BATCH, load, loss, network
from headrace.tensorflow import callbacks, data

hvd.init()
EPOCHS = 12
OUTPUT = os.environ.get("SM_OUTPUT_DATA_DIR", "output")

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
        callbacks.Measure(train, BATCH),
        callbacks.Checkpoint(),
        *callbacks.on_rank_0(
            keras.callbacks.ModelCheckpoint(f"{OUTPUT}/best.keras", "val_accuracy", save_best_only=True),
            keras.callbacks.TensorBoard(f"{OUTPUT}/tensorboard/keras"),
        ),
    ],
)
