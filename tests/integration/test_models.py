"""Custom models and optimizers work, not only a Keras model with one Keras optimizer."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from headrace.tensorflow import horovod_keras
from headrace.tensorflow.keras import keras_ideal_step
from headrace.tensorflow.ranks import collectives

ROWS = tf.ones([4, 3])


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Make this process the only rank, without MPI."""
    monkeypatch.setattr(horovod_keras, "init", lambda: None)
    monkeypatch.setattr(collectives, "size", lambda: 1)
    monkeypatch.setattr(collectives, "same_on_all_ranks", lambda value, name: value)


class Adversaries(keras.Model):
    """A model with two networks. Each has its own optimizer. Each step changes the variables `steps` and `teacher`."""

    def __init__(self):
        super().__init__()
        self.one, self.two = keras.layers.Dense(1), keras.layers.Dense(1)
        self.steps, self.teacher = tf.Variable(0), tf.Variable(1.0)
        self.noise = keras.random.SeedGenerator(1)

    def compile(self, first, second):
        super().compile()
        self.first, self.second = first, second

    def train_step(self, rows):
        self.steps.assign_add(1)
        self.teacher.assign(self.teacher * 0.9)
        rows += keras.random.normal(tf.shape(rows), seed=self.noise)
        with tf.GradientTape(persistent=True) as tape:
            losses = [tf.reduce_mean(layer(rows) ** 2) for layer in (self.one, self.two)]
        for layer, loss, optimizer in zip((self.one, self.two), losses, (self.first, self.second), strict=True):
            optimizer.apply_gradients(
                zip(tape.gradient(loss, layer.trainable_weights), layer.trainable_weights, strict=True)
            )
        return {"loss": losses[0]}


def test_measuring_the_ideal_step_leaves_no_trace_in_a_model_with_a_train_step_of_its_own():
    model = Adversaries()
    model.compile(horovod_keras.DistributedOptimizer(keras.optimizers.Adam()), keras.optimizers.Adagrad())
    for layer in (model.one, model.two):
        layer.build(ROWS.shape)
    model.built = True
    weights = [variable.numpy() for variable in model.variables]
    keras_ideal_step.measure_ideal_step(model, tf.data.Dataset.from_tensors(ROWS).repeat())
    assert (int(model.steps), float(model.teacher)) == (0, 1.0)
    assert [int(each.iterations) for each in (model.first, model.second)] == [0, 0]
    assert all(np.all(variable.numpy() == np.float32(0.1)) for variable in model.second.variables[2:])
    assert all(np.array_equal(*pair) for pair in zip(weights, (v.numpy() for v in model.variables), strict=True))


def test_a_step_with_metrics_and_an_optimizer_is_traced_once():
    traces = []

    def loss(expected, predicted):
        traces.append(expected.shape)  # runs while the step is traced
        return keras.losses.sparse_categorical_crossentropy(expected, predicted)

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "softmax")])
    model.compile("adam", loss, metrics=["accuracy"])
    rows = tf.data.Dataset.from_tensors((ROWS, [0, 1, 2, 3])).repeat()
    assert keras_ideal_step.measure_ideal_step(model, rows).ms > 0
    logs = model.fit(rows, steps_per_epoch=2, verbose=0).history
    assert traces == [(4,)]
    assert logs["accuracy"] == [0.25]  # the rows are equal, and each has another label


def test_a_batch_of_texts_is_a_real_one_when_the_ideal_step_is_measured():
    class Parsing(keras.Sequential):
        def train_step(self, lines):
            return super().train_step((tf.strings.to_number(lines)[:, None], tf.strings.to_number(lines)[:, None]))

    model = Parsing([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    lines = tf.data.Dataset.from_tensor_slices(["1", "2"]).batch(2, drop_remainder=True).repeat()
    assert keras_ideal_step.measure_ideal_step(model, lines, 2).ms > 0


def looking_up(*years):
    """Return a model that accepts these years only, and its weights."""
    model = keras.Sequential(
        [
            keras.Input((), dtype="int64"),
            keras.layers.IntegerLookup(vocabulary=years, num_oov_indices=0),
            keras.layers.Embedding(len(years), 3),
            keras.layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse")
    return model, model.get_weights()


YEARS = tf.data.Dataset.from_tensor_slices(([2020, 2021], [0.0, 1.0])).batch(2, drop_remainder=True).repeat()


def test_where_the_step_fails_on_what_is_made_up_the_ideal_step_is_measured_on_a_real_batch():
    model, weights = looking_up(2020, 2021)
    assert keras_ideal_step.measure_ideal_step(model, YEARS, 2).ms > 0
    assert all(map(np.array_equal, weights, model.get_weights())) and int(model.optimizer.iterations) == 0


def test_a_model_that_no_batch_suits_fails_while_it_is_measured_as_it_would_while_it_trains():
    model, _ = looking_up(1999)
    with pytest.raises(tf.errors.InvalidArgumentError, match="found OOV values"):
        keras_ideal_step.measure_ideal_step(model, YEARS, 2)


def test_what_is_no_dataset_has_no_ideal_step():
    class Rows(keras.utils.PyDataset):
        def __len__(self):
            return 2

        def __getitem__(self, at):
            return np.ones((4, 1), "float32"), np.ones((4, 1), "float32")

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    assert keras_ideal_step.measure_ideal_step(model, Rows(), 4) is None


class Rising(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule without get_config, as people write them."""

    def __call__(self, step):
        return 0.1 * tf.cast(step + 1, tf.float32)


class Own(keras.optimizers.SGD):
    def __init__(self, factor):
        super().__init__(0.1 * factor)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.Adam(Rising()),
        lambda: keras.optimizers.SGD(lambda: 0.1),
        lambda: Own(2),
        lambda: "adam",
    ],
)
def test_any_optimizer_becomes_a_distributed_one(optimizer):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(horovod_keras.DistributedOptimizer(optimizer()), "mse")
    before = model.get_weights()[0]
    model.fit(ROWS, tf.ones([4, 1]), verbose=0)
    assert hasattr(model.optimizer, "headrace_reduction") and not np.array_equal(before, model.get_weights()[0])


def test_what_is_left_out_of_weight_decay_stays_left_out():
    optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    optimizer = horovod_keras.DistributedOptimizer(optimizer)
    bias = keras.Variable([1.0], name="bias")
    optimizer.build([bias])
    optimizer.apply([tf.constant([0.0])], [bias])
    assert bias.numpy() == [1.0]


def test_an_optimizer_that_was_used_is_begun_anew():
    used = keras.optimizers.SGD(0.5)
    weight = keras.Variable([1.0])
    used.build([weight])
    used.apply([tf.constant([0.0])], [weight])
    new = horovod_keras.DistributedOptimizer(used)
    assert new is not used and not new.built and float(new.learning_rate) == 0.5
