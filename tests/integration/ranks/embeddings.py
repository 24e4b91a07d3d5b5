"""Check on two ranks that sparse gradients stay sparse. Weights must be as if one rank had the whole batch.
test_horovod.py runs this script."""

import headrace.tensorflow.horovod_keras as hvd
import keras
import numpy as np
import tensorflow as tf

hvd.init()
rank = hvd.rank()
# Some rows come several times on one rank, some on both ranks, some on only one rank, some never.
everyones = np.array([[1, 1, 2, 5, 1], [1, 3, 5, 5, 3]])
first, others = (np.random.default_rng(0).random(shape).astype("float32") for shape in ((6, 3), (2, 3)))


class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.rows, self.table, self.second = (
            keras.layers.Embedding(6, 3),
            keras.layers.Embedding(2, 3),
            keras.layers.Dense(2),
        )

    def call(self, numbers):
        return self.second(self.rows(numbers) * self.table(numbers % 2))


def make_model():
    keras.utils.set_random_seed(1)
    model = Model()
    model(everyones)
    model.rows.embeddings.assign(first)
    model.table.embeddings.assign(others)
    return model


def gradients(tape, numbers, model):
    with tape as recording:
        loss = tf.reduce_mean(model(numbers) ** 2)
    return recording.gradient(loss, [each.value for each in model.trainable_variables])


model = make_model()
whole = [tf.convert_to_tensor(each) for each in gradients(tf.GradientTape(), everyones, model)]
for sparse_as_dense in False, True:
    tape = hvd.DistributedGradientTape(tf.GradientTape(), sparse_as_dense=sparse_as_dense)
    found = gradients(tape, everyones[rank : rank + 1], model)
    kinds = [isinstance(each, tf.IndexedSlices) for each in found]
    assert kinds == [not sparse_as_dense, not sparse_as_dense, False, False], kinds
    for ours, expected in zip(found, whole, strict=True):
        np.testing.assert_allclose(tf.convert_to_tensor(ours), expected, rtol=1e-5, atol=1e-6)
sums = gradients(hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum), everyones[rank : rank + 1], model)
np.testing.assert_allclose(tf.convert_to_tensor(sums[0]), whole[0] * 2, rtol=1e-5, atol=1e-6)

# Keras's optimizers square or clip a sparse gradient's slices, so the slices of the same row must be added up first.
for make, *ways in (
    (lambda: keras.optimizers.Adam(0.1), False, True),
    (lambda: keras.optimizers.Adagrad(0.1, clipnorm=0.01), False),
    (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, momentum=0.9), initial_scale=4.0), False),
):
    for sparse_as_dense in ways:
        ours, plain = make_model(), make_model()
        optimizer = hvd.DistributedOptimizer(make(), sparse_as_dense=sparse_as_dense)
        ours.compile(optimizer, "mse")
        mine = everyones[rank : rank + 1]
        ours.fit(mine, np.ones((*mine.shape, 2)), epochs=3, verbose=0)
        expected = make()
        for _ in range(3):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((plain(everyones) - 1) ** 2)
                loss = expected.scale_loss(loss)
            dense = [
                tf.convert_to_tensor(each) for each in tape.gradient(loss, [v.value for v in plain.trainable_variables])
            ]
            expected.apply(dense, plain.trainable_variables)
        for found, wanted in zip(ours.weights, plain.weights, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5, err_msg=found.path)
print("all promises kept")
