"""On one rank, Keras makes as many steps with a distributed dataset as with the dataset itself."""

import keras
import pytest
import tensorflow as tf
from headrace.tensorflow import data


class Steps(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.made = [*getattr(self, "made", []), 0]

    def on_train_batch_end(self, batch, logs=None):
        self.made[-1] += 1


def made_in(batches, steps):
    """Train, and return the steps of each epoch."""
    model, counted = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]), Steps()
    model.compile("sgd", "mse", jit_compile=False)
    model.fit(batches, epochs=4, steps_per_epoch=steps, verbose=0, callbacks=[counted])
    return counted.made


@pytest.mark.parametrize("is_counted", [True, False])
def test_keras_makes_the_steps_that_it_makes_of_the_dataset_itself(is_counted, use, servers):
    rows = tf.data.Dataset.range(32).map(lambda n: (tf.cast([n], tf.float32),) * 2).batch(4)
    rows = rows if is_counted else rows.filter(lambda *_: True)
    use(servers(1).address)
    train = data.distribute(rows)
    assert int(train.cardinality()) == int(rows.cardinality())
    for steps in (None, 8, 5, 30):
        assert made_in(train, steps) == made_in(rows, steps), steps
    assert len(keras.Sequential([keras.layers.Dense(1)]).predict(train, verbose=0)) == 32
