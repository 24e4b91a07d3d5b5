"""Check on two ranks that SyncBatchNormalization gives what BatchNormalization gives for the whole batch.
test_horovod.py runs this script."""

import headrace.tensorflow.horovod_keras as hvd
import keras
import numpy as np
import tensorflow as tf

hvd.init()
rank = hvd.rank()
rng = np.random.default_rng(0)
close = {"rtol": 1e-5, "atol": 1e-5}


def step(layer, inputs, factors, mask):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = layer(inputs, training=True, mask=mask)
        loss = tf.reduce_sum(factors * outputs**2)
    return outputs, tape.gradient(loss, [inputs, layer.gamma.value, layer.beta.value])


# Ranks have unequal batches with different means, far from 0.
mine = slice(0, 6) if rank == 0 else slice(6, 16)
batch = (rng.random((16, 5, 3)) + 50 + np.arange(16)[:, None, None]).astype("float32")
factors = (rng.random((16, 5, 3)) / 100).astype("float32")
masked = np.arange(80).reshape(16, 5) % 3 > 0
gamma, beta = rng.random(3), rng.random(3)
for run in step, tf.function(step):
    for axis, mask in (-1, None), (1, None), (-1, masked):
        layers = [
            kind(axis=axis, momentum=0.5) for kind in (hvd.SyncBatchNormalization, keras.layers.BatchNormalization)
        ]
        whole, weighted = (np.moveaxis(each, -1, axis) for each in (batch, factors))
        for each in layers:
            each.build((None, *whole.shape[1:]))
            each.gamma.assign(gamma)
            each.beta.assign(beta)
        ours, kerass = layers
        outputs, (by_input, by_gamma, by_beta) = run(
            ours, tf.constant(whole[mine]), tf.constant(weighted[mine]), mask if mask is None else mask[mine]
        )
        expected, (whole_by_input, whole_by_gamma, whole_by_beta) = step(kerass, tf.constant(whole), weighted, mask)
        np.testing.assert_allclose(outputs, expected[mine], **close)
        np.testing.assert_allclose(by_input, whole_by_input[mine], **close)
        np.testing.assert_allclose(hvd.allreduce(by_gamma, op=hvd.Sum), whole_by_gamma, **close)
        np.testing.assert_allclose(hvd.allreduce(by_beta, op=hvd.Sum), whole_by_beta, **close)
        np.testing.assert_allclose(ours.moving_mean, kerass.moving_mean, **close)
        np.testing.assert_allclose(ours.moving_variance, kerass.moving_variance, **close)
        np.testing.assert_allclose(ours(whole, training=False), kerass(whole, training=False), **close)


# Three steps of fit end with the same weights.
def make_model(kind):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Conv2D(4, 3), kind(), keras.layers.ReLU(), keras.layers.Flatten(), keras.layers.Dense(2)]
    return keras.Sequential([keras.Input((8, 8, 1)), *layers])


images, labels = rng.random((48, 8, 8, 1)).astype("float32"), rng.integers(0, 2, (48, 2)).astype("float32")
images[::2] += 1  # the ranks' batches differ
ours, kerass = make_model(hvd.SyncBatchNormalization), make_model(keras.layers.BatchNormalization)
ours.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), "mse")
kerass.compile(keras.optimizers.SGD(0.05), "mse", jit_compile=False)
ours.fit(images[rank::2], labels[rank::2], batch_size=8, shuffle=False, verbose=0)
kerass.fit(images, labels, batch_size=16, shuffle=False, verbose=0)
for found, expected in zip(ours.weights, kerass.weights, strict=True):
    np.testing.assert_allclose(found, expected, **close, err_msg=found.path)

# Without a distributed optimizer Keras would choose XLA, which Horovod does not support.
ours.compile("sgd", "mse")
ours.fit(images[rank::2], labels[rank::2], batch_size=8, verbose=0)

# A saved model keeps the synchronized layer.
assert type(keras.models.model_from_json(ours.to_json()).layers[1]) is hvd.SyncBatchNormalization
print("all promises kept")
