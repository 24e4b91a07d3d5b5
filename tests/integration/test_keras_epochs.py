"""Epochs of Keras's that end with their data."""

import keras
import pytest
import tensorflow as tf
from headrace.tensorflow import data

from tests.integration.service import service


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_an_optimizer_counts_the_steps_that_are_made(optimizer, jit_compile):
    model = keras.Sequential([keras.Input((3,), dtype="int32"), keras.layers.Embedding(10, 4), keras.layers.Flatten()])
    model.compile(optimizer, "mse", jit_compile=jit_compile)
    ending = tf.data.Dataset.from_tensor_slices((tf.ones([16, 3]), tf.zeros([16, 12]))).batch(4).filter(lambda *_: True)
    model.fit(ending, epochs=3, verbose=0)
    assert int(model.optimizer.iterations) == 3 * 4


@pytest.mark.parametrize("steps_per_execution", [1, 3])
def test_metrics_and_what_a_step_counts_are_of_the_steps_that_are_made_where_batches_have_one_size(steps_per_execution):
    class Counting(keras.Sequential):
        def train_step(self, batch):
            counted.assign_add(1)
            return super().train_step(batch)

    counted = tf.Variable(0)
    model = Counting([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.0), "mse", metrics=["mae"], steps_per_execution=steps_per_execution,
                  jit_compile=False)  # fmt: skip
    rows = tf.data.Dataset.from_tensor_slices((tf.ones([16, 1]),) * 2).batch(4, drop_remainder=True)
    ending = rows.filter(lambda *_: True)
    history = model.fit(ending, epochs=2, verbose=0, validation_data=ending).history
    assert {name: values for name, values in history.items() if values != [1.0, 1.0]} == {}
    assert int(counted) == 2 * 4


@pytest.mark.parametrize(("steps", "epochs"), [(8, 3), (5, 4), (30, 1)])
def test_each_epoch_has_the_steps_that_the_script_says_though_the_stream_ends(steps, epochs, tmp_path, use):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    rows = tf.data.Dataset.range(32).map(lambda n: (tf.cast([n], tf.float32),) * 2).batch(4)
    with service(tmp_path / "work", 1) as running:
        use(running.address)
        train, held_out = data.distribute(rows), data.distribute(rows)
        assert len(model.fit(train, epochs=3, verbose=0).epoch) == 3
        model.optimizer.iterations.assign(0)
        model.fit(train, epochs=epochs, steps_per_epoch=steps, verbose=0, validation_data=held_out, validation_steps=9)
        assert int(model.optimizer.iterations) == epochs * steps
        assert len(model.predict(data.distribute(rows), steps=9, verbose=0)) == 32, "each counts once"
