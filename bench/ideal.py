"""Compare the ideal step time with the time of real steps that never wait for data.

    python -m bench.ideal [--repeats 10]

Three models train on one batch in memory, so no step waits. In each turn, the program measures the ideal step time,
then trains for a quarter of a second, and at least ten steps. So changes of the machine's speed affect both alike. Each
ideal step time is compared with the mean of the step times before and after it. A run has as many turns as fit into
`RUN_S`, and at least `LEAST_TURNS`. A run's error is the median of its turns' errors. Only jobs cap the ideal step time
at the steps' median. Each model's first run does not count, since it touches new memory and chooses kernels.
"""

import itertools
import time

from bench import measure

RUN_S, LEAST_TURNS, TRAIN_S = 20, 16, 0.25
MODELS = {"dense": 32, "small_cnn": 64, "resnet50": 32}
"""The size of the images in pixels, by model."""
BATCH, LEAST_STEPS = 32, 10


def main(argv=None):
    repeats = measure.arguments(__doc__, argv, repeats=10).repeats
    import keras
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(2)
    compare("ideal", lambda name, size: one(keras, tf, name, size), repeats)


def compare(what, one_run, repeats):
    """Measure each model in `repeats` runs, and write how far the ideal step times are off. `one_run` makes one run."""
    rows, worst = [], {}
    for name, size in MODELS.items():
        found = [one_run(name, size) for _ in range(1 + repeats)][1:]
        compared = {
            "a run": [measure.median(errors) for errors in map(errors_of, found)],
            "a single turn": [each for errors in map(errors_of, found) for each in errors],
        }
        median_ms = measure.median([measure.median(train_ms) for _, train_ms in found])
        for of, errors in compared.items():
            worst.setdefault(of, []).extend(map(abs, errors))
            rows.append(
                {
                    "model": name,
                    "median step ms": median_ms,
                    "of": of,
                    "least error": f"{min(errors):+.1%}",
                    "median error": f"{measure.median(errors):+.1%}",
                    "most": f"{max(errors):+.1%}",
                }
            )
    of_run, of_turn = (max(errors) for errors in worst.values())
    measure.leave(what, {f"{what}_error_max": of_run, f"{what}_error_of_a_turn_max": of_turn}, rows, repeats=repeats)


def errors_of(run):
    """Return a run's relative errors. Each compares an ideal step time with the step times just before and after."""
    ideal_ms, train_ms = run
    around_ms = [(before + after) / 2 for before, after in itertools.pairwise(train_ms)]
    return [measured / around - 1 for measured, around in zip(ideal_ms, around_ms, strict=True)]


def one(keras, tf, name, size):
    """Alternate between training and a measurement of the ideal step time. Return two lists, in ms: the ideal step
    times, and the median step time of each training."""
    from headrace.tensorflow.keras.keras_ideal_step import measure_ideal_step

    keras.backend.clear_session()
    pixels = tf.cast(tf.random.uniform([BATCH, size, size, 3], 0, 256), tf.uint8)
    cached = tf.data.Dataset.from_tensors((pixels, tf.zeros([BATCH], tf.int32))).repeat()
    model = network(keras, name, (size, size, 3))
    model.compile("sgd", loss="sparse_categorical_crossentropy", jit_compile=False)
    times = []

    class Times(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            times.append(time.perf_counter())

    def trained_ms(step_ms):
        times.clear()
        steps = max(int(TRAIN_S * 1000 / step_ms), LEAST_STEPS)
        model.fit(cached, steps_per_epoch=steps, verbose=0, callbacks=[Times()])
        return measure.median([1000 * (after - before) for before, after in itertools.pairwise(times)])

    ideal_ms, train_ms = [], [trained_ms(measure_ideal_step(model, cached, BATCH).ms)]
    end = time.monotonic() + RUN_S
    while len(ideal_ms) < LEAST_TURNS or time.monotonic() < end:
        ideal_ms.append(measure_ideal_step(model, cached, BATCH).ms)
        train_ms.append(trained_ms(ideal_ms[-1]))
    print(f"ideal: {name} {measure.median(ideal_ms):.2f} ms; real step {measure.median(train_ms):.2f} ms", flush=True)
    return ideal_ms, train_ms


def network(keras, name, shape):
    """Return a classifier of ten classes."""
    layers = keras.layers
    start = [keras.Input(shape, dtype="uint8"), layers.Rescaling(1 / 255)]
    if name == "resnet50":
        middle = [keras.applications.ResNet50(weights=None, include_top=False, input_shape=shape, pooling="avg")]
    elif name == "small_cnn":
        middle = [layers.Conv2D(each, 3, strides=2, padding="same", activation="relu") for each in (16, 32, 64)]
        middle += [layers.Flatten(), layers.Dense(64, activation="relu")]
    else:
        middle = [layers.Flatten(), layers.Dense(512, activation="relu"), layers.Dense(512, activation="relu")]
    return keras.Sequential([*start, *middle, layers.Dense(10, activation="softmax")])


if __name__ == "__main__":
    main()
