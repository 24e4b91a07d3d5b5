"""Train on a table, given as a dictionary of its columns by name. dict(frame) makes one from a pandas.DataFrame."""

import headrace.tensorflow.horovod_keras as hvd
import keras
import tensorflow as tf
from headrace.tensorflow import callbacks, data
from sklearn.datasets import load_breast_cancer

hvd.init()
EPOCHS, BATCH = 12, 16
table = load_breast_cancer()
columns = {
    name.replace(" ", "_"): table.data[:, place].astype("float32")
    for place, name in enumerate(table.feature_names[:10])
}

examples = tf.data.Dataset.from_tensor_slices((columns, table.target.astype("int32")))
examples = examples.shuffle(len(table.target), seed=1, reshuffle_each_iteration=False)  # rows are not in random order
train = data.distribute(examples.skip(100).shuffle(500).batch(BATCH)).prefetch(2)
held_out = data.distribute(examples.take(100).batch(BATCH), job_name="held_out", uneven="keep")

inputs = {name: keras.Input((1,), name=name) for name in columns}
normalised = []
for name, column in columns.items():
    layer = keras.layers.Normalization(axis=None, mean=column.mean(), variance=column.var())
    normalised.append(layer(inputs[name]))
hidden = keras.layers.Dense(16, "relu")(keras.layers.Concatenate()(normalised))
model = keras.Model(inputs, keras.layers.Dense(2)(hidden))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), loss, metrics=["accuracy"])
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
