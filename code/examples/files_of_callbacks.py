"""Run ModelCheckpoint and TensorBoard only on rank 0, because they write files.

A job resumes from the files of headrace's `callbacks.Checkpoint`, not from those of Keras's ModelCheckpoint.
"""

import os

import headrace.tensorflow.horovod_keras as hvd
import keras
from digits import QUIET, datasets, loss, network, usual
from headrace.tensorflow import callbacks

hvd.init()
EPOCHS = 12
OUTPUT = os.environ.get("SM_OUTPUT_DATA_DIR", "output")

train, held_out = datasets()

model = network()
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.003)), loss(), metrics=["accuracy"])
model.fit(
    train,
    epochs=EPOCHS,
    validation_data=held_out,
    callbacks=[
        *usual(train),
        callbacks.Checkpoint(),
        *callbacks.on_rank_0(
            keras.callbacks.ModelCheckpoint(f"{OUTPUT}/best.keras", "val_accuracy", save_best_only=True),
            keras.callbacks.TensorBoard(f"{OUTPUT}/tensorboard/keras"),
        ),
    ],
    **QUIET,
)
