"""Check on two ranks that a tf.distribute strategy for several devices is refused at once.
test_horovod.py runs this script."""

import headrace.tensorflow.horovod_keras as hvd
import keras
import tensorflow as tf
from headrace.errors import InputError
from headrace.tensorflow import data


def refused(do, text):
    try:
        do()
    except InputError as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"{text}: was taken")


tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
hvd.init()
batches = tf.data.Dataset.range(8).batch(2)
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    refused(lambda: hvd.DistributedOptimizer("sgd"), "trains on 2 devices in each of 2 ranks")
    refused(lambda: data.distribute(batches), "trains on 2 devices in each of 2 ranks")

# A strategy with the one device of a rank is accepted.
with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer("sgd"), "mse")
    data.distribute(batches)
print("all promises kept")
