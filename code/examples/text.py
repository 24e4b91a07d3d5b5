"""Classify sentences of any length. The workers split sentences into words, and batch sentences of similar length.

Start the job with `--channel training=FOLDER`. `python tools/make_samples.py FOLDER` fills the folder.
A sentence's label is 1 if it contains a good word ("bright"), and 0 if it contains a bad one ("grim").
"""

import os

import headrace.tensorflow.horovod_keras as hvd
import keras
import tensorflow as tf
from headrace.tensorflow import callbacks, data

hvd.init()
EPOCHS, BATCH, BUCKETS = 6, 32, 1000
files = [os.path.join(os.environ["SM_CHANNEL_TRAINING"], f"sentences-{number}.txt") for number in range(4)]


def encode(line):
    label, sentence = tf.unstack(tf.strings.split(line, "\t", 1), num=2)
    words = tf.strings.to_hash_bucket_fast(tf.strings.split(sentence), BUCKETS - 1)
    return tf.cast(words + 1, tf.int32), tf.strings.to_number(label, tf.int32)  # 0 is padding


examples = tf.data.Dataset.from_tensor_slices(files).interleave(tf.data.TextLineDataset, 4)
examples = examples.shuffle(512).map(encode, tf.data.AUTOTUNE)
train = examples.bucket_by_sequence_length(lambda words, _: tf.size(words), [8, 16], [BATCH] * 3)
train = data.distribute(train).prefetch(2)

words = keras.Input((None,), dtype="int32")
embedded = keras.layers.Embedding(BUCKETS, 16)(words)
model = keras.Model(words, keras.layers.Dense(2)(keras.layers.GlobalAveragePooling1D()(embedded)))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.02)), loss, metrics=["accuracy"])
model.fit(
    train,
    epochs=EPOCHS,
    verbose=0,
    shuffle=False,
    callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        callbacks.Measure(train, BATCH),
    ],
)
