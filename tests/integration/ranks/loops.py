"""Check on two ranks that training loops of all kinds keep the ranks' models equal.
test_horovod.py runs this script."""

import os
import sys
import time

os.environ["SM_OUTPUT_DATA_DIR"] = sys.argv[1]
os.environ["HEADRACE_OUTPUT_DIR"] = sys.argv[1]

import json
from pathlib import Path

import headrace.tensorflow.horovod_keras as hvd
import keras
import numpy as np
import tensorflow as tf
from headrace.errors import InputError
from headrace.tensorflow import callbacks
from headrace.tensorflow.keras import rank_meter
from headrace.training import meter

hvd.init()
rank, size = hvd.rank(), hvd.size()
keras.utils.set_random_seed(rank)
x = np.random.default_rng(rank).random((64, 4)).astype("float32")
y = np.random.default_rng(rank).integers(0, 3, 64)


def batches(values=x):
    return tf.data.Dataset.from_tensor_slices((values, y)).batch(8)


def assert_alike(values, what):
    flat = np.concatenate([np.ravel(np.asarray(value)) for value in values]).astype("float64")
    everyones = np.asarray(hvd.allgather(tf.constant(flat[None])))
    assert (everyones == everyones[0]).all(), f"{what}: the ranks differ"
    assert np.isfinite(flat).all(), what


def network():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3, dtype="float32")])


def fitted(model, optimizer, values=x, **compiled):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, **compiled)
    meter = callbacks.Measure(batches(values), 8, log_every=4)
    model.fit(
        batches(values),
        epochs=3,
        verbose=0,
        shuffle=False,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), meter],
    )
    return model


# mixed_float16: rank 1's third batch overflows; all skip that step, halve the scale, and go on together.
keras.mixed_precision.set_global_policy("mixed_float16")
values = x.copy()
if rank == 1:
    values[16:24] = 6e4
model = fitted(network(), hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), values)
assert type(model.optimizer).__name__ == "LossScaleOptimizer"
scale = float(model.optimizer.dynamic_scale.value)
assert scale == 2.0**15 / 2**3, f"one overflow in each of three epochs, but the scale is {scale}"
assert_alike([*model.weights, *(v.value for v in model.optimizer.variables)], "mixed_float16")
scaled = hvd.DistributedOptimizer(keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.01)))
model = fitted(network(), scaled, values)
assert_alike([*model.weights, *(v.value for v in model.optimizer.variables)], "a scaler of one's own")
# A model can be compiled again with the same optimizer, for example to continue with other layers frozen.
model, same = network(), hvd.DistributedOptimizer(keras.optimizers.SGD(0.01))
for _ in range(2):
    fitted(model, same, values)
    assert_alike(model.weights, "compiled once more")
model = network()
scaled = hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01)))
scaled.build(model.trainable_variables)
hvd.broadcast_variables(model.weights)
for number in range(4):  # a custom loop: rank 1 overflows in the second step, so all ranks skip that step
    gradients = [
        tf.fill(v.shape, np.inf if (rank, number) == (1, 1) else 1e3 * (number + 1)) for v in model.trainable_variables
    ]
    scaled.apply(gradients)
assert_alike([*model.weights, *(v.value for v in scaled.variables)], "a scaler in a loop of one's own")
assert int(scaled.inner_optimizer.iterations.value) == 3, scaled.inner_optimizer.iterations
# With the wrappers the other way round, ranks would skip different steps. That is refused before the first step,
# unless a callback corrects it.
around = keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)))
alone = network()
alone.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
for do in (
    lambda: around.apply([tf.ones(v.shape) for v in model.trainable_variables], model.trainable_variables),
    lambda: alone.fit(x, np.eye(3)[y], verbose=0),
):
    try:
        do()
        raise AssertionError("not refused: each rank would choose alone which steps to skip")
    except InputError as error:
        assert "write hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer" in str(error), error
keras.mixed_precision.set_global_policy("mixed_bfloat16")
assert_alike(fitted(network(), hvd.DistributedOptimizer(keras.optimizers.Adam())).weights, "mixed_bfloat16")
keras.mixed_precision.set_global_policy("float32")

# Every fourth step, accumulated gradients are averaged and then clipped, as if one rank had the whole batch.
accumulating = keras.optimizers.SGD(0.1, gradient_accumulation_steps=4, global_clipnorm=0.5)
accumulating = hvd.DistributedOptimizer(accumulating)
weight, before = keras.Variable([1.0, 1.0]), rank_meter.steps()
accumulate = tf.function(lambda gradient: accumulating.apply([gradient], [weight]))
for number in range(8):
    accumulate(tf.constant([3.0, 4.0]) * (number + rank))
assert rank_meter.steps() - before == 2, "only two of eight gradients are applied"
np.testing.assert_allclose(weight, [1 - 0.1 * 2 * 0.5 * 0.6, 1 - 0.1 * 2 * 0.5 * 0.8], rtol=1e-5)
accumulating = keras.optimizers.SGD(0.1, gradient_accumulation_steps=4)
assert_alike(fitted(network(), hvd.DistributedOptimizer(accumulating)).weights, "gradient accumulation")

# The callbacks turn off XLA, which Horovod does not support, even if the script chose it.
model = fitted(network(), hvd.DistributedOptimizer(keras.optimizers.SGD()), jit_compile=True)
assert not model.jit_compile
# A metric's result may be a vector, with one value for each class.
model = network()
f1 = keras.metrics.F1Score()
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "categorical_crossentropy", metrics=[f1])
one_hot = tf.data.Dataset.from_tensor_slices((x, np.eye(3)[y])).batch(8)
both = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
history = model.fit(one_hot, epochs=1, verbose=0, validation_data=one_hot, callbacks=both).history
for name in "f1_score", "val_f1_score":
    assert np.shape(history[name]) == (1, 3), history
    assert_alike(history[name], name)


class Named(keras.Model):
    """A model that returns its metric under another name, and also returns a value that is not a metric."""

    def __init__(self):
        super().__init__()
        self.total, self.dense = keras.metrics.Mean(name="total_loss"), keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(inputs)

    def train_step(self, batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self(batch) ** 2)
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, self.trainable_weights), self.trainable_weights, strict=True)
        )
        self.total.update_state(loss)
        return {"loss": self.total.result()}

    def test_step(self, batch):
        self.total.update_state(tf.reduce_mean(self(batch) ** 2), tf.shape(batch)[0])
        return {"loss": self.total.result(), "largest": tf.reduce_max(batch)}


# The metrics of a test_step are those of the whole set. Other values that it returns are averaged over the ranks.
named = Named()
named(x)
named.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
parts = [np.random.default_rng(of).random((64, 4)).astype("float32")[: 64 - 24 * of] for of in (0, 1)]
part = tf.data.Dataset.from_tensor_slices(parts[rank]).batch(8)
history = named.fit(part, epochs=2, steps_per_epoch=2, verbose=0, validation_data=part, callbacks=both).history
np.testing.assert_allclose(
    history["val_total_loss"][-1], np.mean(np.asarray(named(np.concatenate(parts))) ** 2), rtol=1e-4
)
for name in "val_loss", "val_largest":
    assert_alike(history[name], name)

# With steps_per_execution, the report counts and times single steps, not executions.
meter._ended.clear()  # only what follows is reported
began = time.perf_counter()
fitted(network(), hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), steps_per_execution=3)
took_s = time.perf_counter() - began
if rank == 0:
    report = json.loads((Path(sys.argv[1]) / "trainer.json").read_text())
    assert report["steps"] == 24, report["steps"]
    assert report["step_time_ms"]["mean"] * 24 <= took_s * 1000

# A custom loop uses the tape on variables of Keras.
model, optimizer = network(), keras.optimizers.Adam(0.01)
objective = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function
def step(features, labels):
    with tf.GradientTape() as tape:
        loss = objective(labels, model(features, training=True))
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


hvd.broadcast_variables(model.weights)
assert_alike(model.weights, "broadcast_variables")
checkpoint = callbacks.Checkpoint(Path(sys.argv[1]) / "loop")
training = callbacks.Training(model, optimizer, 8, log_every=4, checkpoint=checkpoint)
meter._ended.clear()
began = time.perf_counter()
for _epoch in training.epochs(3):
    for features, labels in training.steps(batches()):
        loss = step(features, labels)
        time.sleep(0.01)
    averaged = training.end_epoch(loss=loss, rank=rank)
    assert averaged["rank"] == 0.5
took_s = time.perf_counter() - began
assert_alike([*model.weights, *(v.value for v in optimizer.variables)], "a loop with the tape")
if rank == 0:
    report = json.loads((Path(sys.argv[1]) / "trainer.json").read_text())
    assert (report["steps"], report["epochs"]) == (24, 3)
    assert 10 < report["step_time_ms"]["median"] <= 1000 * took_s / 12, "the median step does not fit the loop's time"
    assert 0 <= report["input_bound_share"] < 1
# A second run of the loop continues from its checkpoint.
again = callbacks.Training(model, optimizer, 8, checkpoint=callbacks.Checkpoint(Path(sys.argv[1]) / "loop"))
assert list(again.epochs(5)) == [3, 4]
assert len(callbacks.on_rank_0(keras.callbacks.TensorBoard(sys.argv[1]))) == (rank == 0)
print("all promises kept", flush=True)
