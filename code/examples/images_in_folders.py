"""Train on images in one folder per class, the layout of keras.utils.image_dataset_from_directory.

The tf.data workers decode the images. Start the job with `--channel training=FOLDER`. To fill the folder with images
of digits, run `python tools/make_samples.py FOLDER`.
"""

import os

import headrace.tensorflow.horovod_keras as hvd
import keras
import tensorflow as tf
from headrace.tensorflow import callbacks, data

hvd.init()
EPOCHS, BATCH = 8, 32
folder = os.path.join(os.environ["SM_CHANNEL_TRAINING"], "images")

# With one seed, all ranks list and hold out the same files.
train, held_out = keras.utils.image_dataset_from_directory(
    folder,
    image_size=(16, 16),
    batch_size=BATCH,
    color_mode="grayscale",
    validation_split=0.2,
    subset="both",
    seed=1,
    verbose=False,
)


def as_uint8(images, labels):
    """Round pixels to uint8: a quarter of the bytes on the network, and no visible difference."""
    return tf.cast(tf.round(images), tf.uint8), labels


train = data.distribute(train.map(as_uint8)).prefetch(2)
held_out = data.distribute(held_out.map(as_uint8), job_name="held_out", uneven="keep")

layers = keras.layers
model = keras.Sequential(
    [
        keras.Input((16, 16, 1), dtype="uint8"),
        layers.Rescaling(1 / 255),
        layers.Conv2D(16, 3, strides=2, activation="relu"),
        layers.Conv2D(32, 3, strides=2, activation="relu"),
        layers.Flatten(),
        layers.Dense(10),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.003)), loss, metrics=["accuracy"])
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
