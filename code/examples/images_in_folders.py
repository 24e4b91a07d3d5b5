"""Train on images in one folder per class, the layout of keras.utils.image_dataset_from_directory.

The tf.data workers decode the images. Start the job with `--channel training=FOLDER`. tools/make_samples.py makes such
a folder with digits.
"""

import os

import headrace.tensorflow.horovod_keras as hvd
import keras
from headrace.tensorflow import callbacks, data
from headrace.tensorflow.io import image_folders

hvd.init()
EPOCHS, BATCH = 8, 32
folder = os.path.join(os.environ["SM_CHANNEL_TRAINING"], "images")

# Pixels travel as uint8; keras.utils.image_dataset_from_directory works too, with four times the bytes.
common = {"image_size": (16, 16), "batch_size": BATCH, "color_mode": "grayscale", "validation_split": 0.2, "seed": 1}
train = data.distribute(image_folders.from_folders(folder, subset="training", **common)).prefetch(2)
held_out = image_folders.from_folders(folder, subset="validation", shuffle=False, **common)
held_out = data.distribute(held_out, job_name="held_out", uneven="keep")

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
