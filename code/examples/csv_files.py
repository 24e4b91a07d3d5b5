"""Train on several CSV files, each with a header line. The workers read the files line by line and parse the lines.

Start the job with `--channel training=FOLDER`. `python tools/make_samples.py FOLDER` fills the folder.
After the header, each line of a CSV file has the 64 pixels and the label of one handwritten digit.
"""

import os

import headrace.tensorflow.horovod_keras as hvd
import keras
import tensorflow as tf
from digits import BATCH, QUIET, loss, network, usual
from headrace.tensorflow import data

hvd.init()
EPOCHS = 12
folder = os.environ["SM_CHANNEL_TRAINING"]


def parse(lines):
    columns = tf.io.decode_csv(lines, [0.0] * 64 + [0])
    return tf.stack(columns[:-1], axis=-1) / 16, columns[-1]


def rows(pattern):
    files = tf.data.Dataset.list_files(os.path.join(folder, pattern))
    # In the interleave, skip(1) leaves out every file's header. After the interleave, it would leave out only one line.
    return files.interleave(lambda file: tf.data.TextLineDataset(file).skip(1))


train = rows("train-*.csv").shuffle(512).batch(BATCH).map(parse, tf.data.AUTOTUNE)
train = data.distribute(train).prefetch(2)
held_out = rows("test-*.csv").batch(BATCH).map(parse)
held_out = data.distribute(held_out, job_name="held_out", uneven="keep")

model = network()
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.003)), loss(), metrics=["accuracy"])
model.fit(train, epochs=EPOCHS, validation_data=held_out, callbacks=usual(train), **QUIET)
