"""Check on two ranks that functions and callbacks of horovod_keras do what they promise.
test_horovod.py runs this script."""

import sys

import headrace.tensorflow.horovod_keras as hvd
import keras
import numpy as np
import tensorflow as tf
from headrace.errors import InputError
from headrace.tensorflow import callbacks
from headrace.tensorflow.keras.keras_ideal_step import measure_ideal_step

hvd.init()
rank, size = hvd.rank(), hvd.size()
assert size == 2
keras.utils.set_random_seed(rank)  # ranks start apart on purpose


def on_all_ranks(values):
    """Return the values of all ranks, one row per rank."""
    flat = np.concatenate([np.ravel(value) for value in values]).astype("float64")
    return np.asarray(hvd.allgather(tf.constant(flat[None])))


def make_model():
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8),
            keras.layers.BatchNormalization(momentum=0.5),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=False)
    return model


def state(model):
    return [np.array(v.value) for v in (*model.variables, *model.optimizer.variables)]


# Gradients are averaged: one SGD step with different gradients moves both ranks by their mean.
layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
layer.build((None, 1))
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
assert type(optimizer).__name__ == "SGD" and isinstance(optimizer, keras.optimizers.SGD)
optimizer.apply([tf.constant([[float(1 + 2 * rank)]])], [layer.kernel])
np.testing.assert_allclose(np.asarray(layer.kernel), [[-2.0]])

# Other functions of `hvd` take the same arguments as Horovod's. Arguments that would change the result are refused.
np.testing.assert_array_equal(hvd.allreduce([float(rank), 2.0]), [0.5, 2.0])
assert float(hvd.allreduce(1.5)) == 1.5 and float(hvd.allreduce(np.float64(rank), op=hvd.Sum)) == 1.0
assert hvd.broadcast_object({"epoch": rank}, root_rank=0) == {"epoch": 0}
assert hvd.allgather_object(rank) == [0, 1] and not hasattr(hvd, "elastic") and not hasattr(hvd, "__path__")
try:
    hvd.join()
    raise NotImplementedError("hvd.join was not refused")
except AttributeError as error:
    assert "hvd.allreduce" in str(error), error
for wrap in hvd.DistributedOptimizer, lambda tape, **how: hvd.DistributedGradientTape(tf.GradientTape(), **how):
    assert wrap(keras.optimizers.SGD(1.0), name="mine", sparse_as_dense=True, device_dense="/cpu:0")
    for refused in {"backward_passes_per_step": 2}, {"op": hvd.Adasum}:
        try:
            wrap(keras.optimizers.SGD(1.0), **refused)
            raise AssertionError(f"{refused} was taken")
        except InputError:
            pass

# After fit, ranks have identical weights and moving statistics, even if their first weights and their data differ.
rng = np.random.default_rng(rank)
x, y = rng.random((64, 4), "float32"), rng.integers(0, 3, 64)
held_x, held_y = np.random.default_rng(9).random((50, 4), "float32"), np.random.default_rng(9).integers(0, 3, 50)
mine = slice(0, 30) if rank == 0 else slice(30, 50)  # held-out parts of different size
train = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(16)
model = make_model()
history = model.fit(
    train,
    epochs=2,
    steps_per_epoch=4,
    verbose=0,
    shuffle=False,
    validation_data=tf.data.Dataset.from_tensor_slices((held_x[mine], held_y[mine])).batch(7),
    callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(0.02, 1, steps_per_epoch=4, verbose=1),
    ],
).history
weights = on_all_ranks([np.asarray(v) for v in model.weights])
np.testing.assert_array_equal(weights[0], weights[1])

# A warm-up without `steps_per_epoch` counts the steps of the first epoch.
warming = make_model()
warming.compile(hvd.DistributedOptimizer("sgd"), "mse")
rates = []
warm_up = hvd.callbacks.LearningRateWarmupCallback(0.02, 2)
note = keras.callbacks.LambdaCallback(
    on_train_batch_end=lambda *_, **__: rates.append(float(warming.optimizer.learning_rate))
)
unknown = tf.data.Dataset.from_tensors((held_x, np.zeros((50, 3), "float32"))).repeat(4).filter(lambda *_: True)
warming.fit(unknown, epochs=3, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), warm_up, note])
np.testing.assert_allclose(rates[:4], 0.01, rtol=1e-5)
np.testing.assert_allclose(rates[4:8], [0.01 * (1 + (1 + (step + 1) / 4) / 2) for step in range(4)], rtol=1e-5)
np.testing.assert_allclose(rates[8:], 0.02, rtol=1e-5)

# Held-out metrics are exact: those of the whole set, on every rank.
loss, accuracy = model.evaluate(held_x, held_y, batch_size=50, verbose=0)
np.testing.assert_allclose(history["val_accuracy"][-1], accuracy, rtol=1e-5)
np.testing.assert_allclose(history["val_loss"][-1], loss, rtol=1e-4)
np.testing.assert_allclose(float(model.optimizer.learning_rate), 0.02, rtol=1e-6)

# Metrics that are counts, such as false positives, are exact too.
counted = make_model()
counted.compile(hvd.DistributedOptimizer("sgd"), "mse", metrics=[keras.metrics.FalsePositives(), "mse"])
whole = tf.data.Dataset.from_tensor_slices((held_x, np.zeros((50, 3), "float32"))).batch(7)
both = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
part = whole.shard(2, rank)
own = counted.fit(whole.take(2), epochs=1, verbose=0, validation_data=part, callbacks=both).history
expected = counted.evaluate(whole, verbose=0, return_dict=True)
assert own["val_false_positives"] == [expected["false_positives"]] and expected["false_positives"] > 0
np.testing.assert_allclose(own["val_mse"][0], expected["mse"], rtol=1e-5)

# If rank 0 alone evaluates, all ranks get an error, and none waits.
alone = make_model()
try:
    alone.fit(train, steps_per_epoch=2, verbose=0, validation_data=whole if rank == 0 else None, callbacks=both)
    raise AssertionError("one rank evaluated")
except InputError as error:
    assert "rank 0 evaluates after an epoch, other ranks do not" in str(error), error

# Several groups of gradients are averaged like one group. Horovod's old and new names work: num_groups, groups.
for how in {"num_groups": 2}, {"groups": 3}, {"num_groups": 9}:
    grouped = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), **how)
    vectors = [keras.Variable([float(each)]) for each in range(5)]
    grouped.apply([tf.constant([float(each + 2 * rank)]) for each in range(5)], vectors)
    np.testing.assert_allclose(np.ravel(vectors), [-1.0] * 5)

# Measuring the ideal step time changes nothing: weights, optimizer, metrics, seeds, bit by bit.
before = state(model)
assert measure_ideal_step(model, train, 16).ms > 0
for old, new in zip(before, state(model), strict=True):
    np.testing.assert_array_equal(old, new)

# An eager step is not measured: its Python code would run, and its side effects are unknown.
eager = make_model()
eager.compile(hvd.DistributedOptimizer("sgd"), "mse", run_eagerly=True)
assert measure_ideal_step(eager, train, 16) is None

# A model that has no weights before its first batch starts alike on all ranks, with the callbacks and in a custom loop.


class Unbuilt(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Dense(8), keras.layers.Dense(3)

    def call(self, inputs):
        return self.second(self.first(inputs))


class Stepping(Unbuilt):
    """A model whose `call` fails. The model's own `train_step` creates the weights instead."""

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.second(self.first(data[0])) ** 2)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}

    def call(self, inputs):
        raise RuntimeError("not by itself")


broadcast, measure = hvd.callbacks.BroadcastGlobalVariablesCallback, callbacks.Measure
for make, in_order in (
    (lambda: keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(3)]), (broadcast(0), measure(train, 16))),
    (Unbuilt, (measure(train, 16), broadcast(0))),
    (Stepping, (measure(train, 16), broadcast(0))),
):
    begun = make()
    begun.compile(
        hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    begun.fit(train, steps_per_epoch=4, verbose=0, callbacks=[*in_order])
    rows = on_all_ranks([np.asarray(v) for v in (*begun.weights, *begun.optimizer.variables)])
    assert len(begun.optimizer.variables) > 2 + len(begun.weights)
    np.testing.assert_array_equal(rows[0], rows[1])


class Augmented(keras.Model):
    """A model with two parts. `trained` is built and has weights. `noise` is not built and has no weights."""

    def __init__(self):
        super().__init__()
        self.noise = keras.Sequential([keras.layers.GaussianNoise(0.1)])
        self.trained = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="ones")])

    def train_step(self, data):
        self.seen = self.trained.weights[0] + 0.0
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.trained(self.noise(data[0])) ** 2)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss, "first": tf.reduce_sum(self.seen)}


# All ranks start with rank 0's weights, although a part of the model is not built.
begun = Augmented()
begun.trained.set_weights([each + rank for each in begun.trained.get_weights()])
begun.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), run_eagerly=True)
logs = begun.fit(train, steps_per_epoch=1, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
assert float(logs.history["first"][0]) == 4.0, logs.history

# Rank 0 alone has built its model, as when it alone has loaded weights: no rank waits for another.
begun = Unbuilt()
if rank == 0:
    begun(tf.zeros([1, 4]))
begun.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), keras.losses.SparseCategoricalCrossentropy(True))
begun.fit(train, steps_per_epoch=2, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
rows = on_all_ranks([np.asarray(v) for v in begun.weights])
np.testing.assert_array_equal(rows[0], rows[1])

begun, optimizer = Unbuilt(), keras.optimizers.Adam(0.01)
training = callbacks.Training(begun, optimizer, 16)
for _ in training.epochs(1):
    for inputs, _ in training.steps(train, 3):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean(begun(inputs) ** 2)
        optimizer.apply(tape.gradient(loss, begun.trainable_variables), begun.trainable_variables)
    training.end_epoch(loss=loss)
rows = on_all_ranks([np.asarray(v) for v in (*begun.weights, *optimizer.variables)])
np.testing.assert_array_equal(rows[0], rows[1])

# A saved model loads as a plain Keras model, and as a distributed one with hvd.load_model.
path = f"{sys.argv[1]}/model-of-rank-{rank}.keras"
model.save(path)
try:
    plain = keras.saving.load_model(path)
    assert type(plain.optimizer) is keras.optimizers.Adam
    again = hvd.load_model(path)
    assert isinstance(again.optimizer, keras.optimizers.Adam) and type(again.optimizer) is not keras.optimizers.Adam
    again.fit(train, steps_per_epoch=1, verbose=0, shuffle=False)
finally:
    tf.io.gfile.remove(path)
print("all promises kept")
