"""Callbacks observe the training steps, and no callback makes a step wait."""

import threading

import headrace.tensorflow.horovod_keras as hvd
import keras
import numpy as np
import pytest
import tensorflow as tf
from headrace.tensorflow import callbacks
from headrace.tensorflow.keras import broadcast, keras_ideal_step, rank_meter
from headrace.tensorflow.ranks import collectives
from keras.src.callbacks import callback_list

ROWS = tf.data.Dataset.from_tensor_slices((np.ones((40, 3), "float32"), np.ones((40, 1), "float32"))).batch(4)


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """Make this process the only rank, without MPI."""
    monkeypatch.setattr(collectives, "_known", (0, 1))
    monkeypatch.setattr(hvd, "init", lambda: None)
    monkeypatch.setenv("HEADRACE_OUTPUT_DIR", str(tmp_path))


def model(**compiled):
    made = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    made.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse", **compiled)
    return made


def ours(tmp_path):
    """Return one of every callback that headrace has."""
    return [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(0.01, 1),
        hvd.callbacks.LearningRateScheduleCallback(0.01, 0.5, start_epoch=1),
        callbacks.Measure(ROWS, 4, log_every=1000),
        callbacks.Checkpoint(tmp_path / "checkpoints"),
    ]


@pytest.fixture
def in_the_background(monkeypatch):
    """Treat Keras's TensorFlow backend as thread-safe. Keras itself does this only for the JAX backend so far."""
    monkeypatch.setattr(callback_list.backend, "IS_THREAD_SAFE", True)


@pytest.mark.usefixtures("in_the_background")
def test_keras_waits_for_no_step_of_training_evaluation_or_prediction(tmp_path):
    given = keras.callbacks.CallbackList(ours(tmp_path), model=model())
    assert (given._async_train, given._async_test, given._async_predict) == (True, True, True)


@pytest.mark.usefixtures("in_the_background")
def test_no_steps_results_are_copied_to_the_host_by_the_thread_that_trains(tmp_path, monkeypatch):
    copied_by = []
    to_numpy = callback_list.python_utils.pythonify_logs

    def noted(logs):
        if any(map(tf.is_tensor, (logs or {}).values())):
            copied_by.append(threading.current_thread() is threading.main_thread())
        return to_numpy(logs)

    monkeypatch.setattr(callback_list.python_utils, "pythonify_logs", noted)
    model().fit(ROWS, epochs=2, verbose=0, callbacks=ours(tmp_path))
    assert copied_by.count(False) == 20
    assert copied_by.count(True) < 5, "more than metrics of each epoch: some of each step"


class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        pass


TRAIN = {
    "known": (ROWS, {}),
    "unknown": (ROWS.filter(lambda *_: True), {}),
    "endless": (ROWS.repeat(), {"steps_per_epoch": 10}),
}


@pytest.mark.parametrize("others", [[], [Slow()]], ids=["in the background", "one after another"])
@pytest.mark.usefixtures("in_the_background")
@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("length", TRAIN)
def test_all_steps_of_an_epoch_are_measured(length, at_once, others, monkeypatch):
    made, (train, steps) = [], TRAIN[length]
    measure = callbacks.Measure(train, 4)
    monkeypatch.setattr(
        measure._meter, "steps", lambda steps, took_s, between_s: made.append((steps, took_s, between_s))
    )
    given = [*others, measure]
    model(steps_per_execution=at_once).fit(train, epochs=2, verbose=0, validation_data=ROWS, callbacks=given, **steps)
    assert [each for each, *_ in made] == [at_once] * (20 // at_once)
    assert all(0 <= between_s <= took_s for _, took_s, between_s in made)


def test_where_measure_is_on_some_ranks_only_no_step_is_made_beside_the_others(monkeypatch, capsys):
    monkeypatch.setattr(collectives, "of_all_ranks", lambda own, name="": [own, [*own[:2], False]])
    monkeypatch.setattr(collectives, "_known", (0, 2))
    monkeypatch.setattr(broadcast, "broadcast_state", lambda *_: None)
    trained, measure = model(), callbacks.Measure(ROWS, 4)
    weights = trained.get_weights()
    for each in (first := hvd.callbacks.BroadcastGlobalVariablesCallback(0)), measure:
        each.set_model(trained)
    first.on_train_begin()
    measure.on_train_begin()
    measure.on_train_end()
    assert "pass a callbacks.Measure to fit() on every rank" in capsys.readouterr().out
    assert all(map(np.array_equal, weights, trained.get_weights()))


def test_a_device_without_memory_for_the_ideal_step_trains_without_it(monkeypatch, capsys):
    def full(*_):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    monkeypatch.setattr(keras_ideal_step, "steps_to_measure", full)
    trained = model()
    weights = trained.get_weights()
    assert keras_ideal_step.measure_ideal_step(trained, ROWS, 4) is None
    assert capsys.readouterr().out.count("the ideal step is not measured, since memory ran out: OOM") == 1
    assert all(map(np.array_equal, weights, trained.get_weights()))


def test_what_is_put_back_after_the_ideal_step_was_kept_on_the_host():
    copies = [keras_ideal_step._copied(variable.value) for variable in model().variables]
    assert {copy.device.rpartition("/")[2] for copy in copies} == {"device:CPU:0"}


def test_a_warm_up_knows_after_the_first_epoch_how_many_steps_it_has():
    rates = []
    note = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: rates.append(warm_up.steps_per_epoch))
    warm_up = hvd.callbacks.LearningRateWarmupCallback(0.01, 3)
    model().fit(ROWS.filter(lambda *_: True), epochs=2, verbose=0, callbacks=[warm_up, note])
    assert rates == [10, 10] and rank_meter.resumed_at == 0
