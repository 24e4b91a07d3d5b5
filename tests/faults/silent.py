"""Train without headrace's callbacks. Near the epoch's end, rank 1 lets rank 0 wait, in the way that `--how` names."""

import argparse
import functools
import threading
import time

import headrace.tensorflow.horovod_keras as hvd
import keras
import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--how", choices=["spin", "unequal", "thread"])
args, _ = parser.parse_known_args()
STEPS = 20


class Hang(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.05)
        if batch == STEPS - 2 and hvd.rank() == 1:
            print("hangs now", flush=True)
            while args.how == "spin":
                pass


hvd.init()
x, y = np.zeros((64, 4), "float32"), np.zeros(64, "int32")
steps = STEPS - (args.how in ("unequal", "thread") and hvd.rank() == 1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD()), loss)
data = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(8)
fit = functools.partial(model.fit, data, steps_per_epoch=steps, verbose=0, callbacks=[Hang()])
if args.how == "thread":
    thread = threading.Thread(target=fit)
    thread.start()
    thread.join()
else:
    fit()
    hvd.allreduce(tf.constant(1.0), name="after training")
