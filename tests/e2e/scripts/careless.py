"""Start a program and leave it running; train without averaging gradients. The job still ends."""

import subprocess
import sys

import keras
import numpy as np
import tensorflow as tf
from headrace.tensorflow import callbacks, data

subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
x, y = np.zeros((256, 4), "float32"), np.zeros(256, "int32")
train = data.distribute(tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(32)).prefetch(2)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
model.compile(keras.optimizers.SGD(float("nan")), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(train, epochs=2, steps_per_epoch=8, verbose=0, callbacks=[callbacks.Measure(train, 32)])
