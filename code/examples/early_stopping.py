"""EarlyStopping and ReduceLROnPlateau run on all ranks, after MetricAverageCallback, so that all ranks decide alike."""

import headrace.tensorflow.horovod_keras as hvd
import keras
from digits import QUIET, datasets, loss, network, usual

hvd.init()
EPOCHS = 30

train, held_out = datasets()

model = network()
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.003)), loss(), metrics=["accuracy"])
model.fit(
    train,
    epochs=EPOCHS,
    validation_data=held_out,
    callbacks=[
        *usual(train),
        keras.callbacks.ReduceLROnPlateau("val_loss", patience=1),
        keras.callbacks.EarlyStopping("val_loss", patience=3),
    ],
    **QUIET,
)
