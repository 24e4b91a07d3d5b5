"""A variant of train_dnn.py that trains a small dense network on a table of tumour measurements."""

import argparse

import headrace.tensorflow.horovod_keras as hvd
import keras
import numpy as np
import tensorflow as tf
from headrace.tensorflow import callbacks, data
from sklearn.datasets import load_breast_cancer

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--batch_size", type=int, default=16)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--hidden", type=int, required=True)
args, _ = parser.parse_known_args()
assert args.hidden == 24

hvd.init()
table = load_breast_cancer()
x = ((table.data - table.data.mean(0)) / table.data.std(0)).astype("float32")
y = table.target.astype("int32")

train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).repeat().batch(args.batch_size)
train = data.distribute(train).prefetch(tf.data.AUTOTUNE)

model = keras.Sequential([keras.Input((x.shape[1],)), keras.layers.Dense(args.hidden, "relu"), keras.layers.Dense(2)])
model.compile(
    hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
    jit_compile=False,
)
model.fit(
    train,
    epochs=args.epochs,
    steps_per_epoch=len(x) // (args.batch_size * hvd.size()),
    verbose=0,
    shuffle=False,
    callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        callbacks.Measure(train, args.batch_size),
    ],
)
weights = np.concatenate([np.ravel(variable.numpy()) for variable in model.weights])
gathered = hvd.allgather(tf.constant(weights[None])).numpy()
assert (gathered == gathered[0]).all()
hvd.shutdown()  # careful scripts end like this; MPI cannot start again afterwards
