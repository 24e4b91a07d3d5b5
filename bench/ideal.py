"""How well the ideal step time tells what a step costs that waits for nothing.

    python -m bench.ideal [--repeats 10]

Three models train on one batch in memory, so no step waits. The ideal step time is measured before, as in any job, and
compared with the median step of the two seconds after it: as measured, while a run reports at most its median. Those
two seconds are compared with the next two, which shows how much the machine changes by itself.
"""

import itertools
import time

from bench import measure

RUN_S = 2.0
MODELS = {"dense": 32, "small_cnn": 64, "resnet50": 32}
"""With the images' size in pixels."""
BATCH = 32


def main(argv=None):
    repeats = measure.arguments(__doc__, argv, repeats=10).repeats
    import keras
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(2)
    rows, worst = [], {}
    for name, size in MODELS.items():
        found = [one(keras, tf, name, size) for _ in range(repeats)]
        compared = {
            "ideal, beside the run": [ideal_ms / first_ms - 1 for ideal_ms, first_ms, _ in found],
            "run, beside its rest": [first_ms / rest_ms - 1 for _, first_ms, rest_ms in found],
        }
        median_ms = measure.median([first_ms for _, first_ms, _ in found])
        for what, errors in compared.items():
            worst.setdefault(what, []).extend(map(abs, errors))
            rows.append({"model": name, "median step ms": median_ms, "what": what, "least error": f"{min(errors):+.1%}",
                         "median error": f"{measure.median(errors):+.1%}", "most": f"{max(errors):+.1%}"})  # fmt: skip
    of_ideal, of_run = (max(errors) for errors in worst.values())
    measure.leave("ideal", {"ideal_error_max": of_ideal, "run_vs_itself_max": of_run}, rows, repeats=repeats)


def one(keras, tf, name, size):
    """The ideal step time, and the median step times of the two halves of a run after it; milliseconds."""
    from headrace.tensorflow.ideal import measure_ideal_step

    keras.backend.clear_session()
    pixels = tf.cast(tf.random.uniform([BATCH, size, size, 3], 0, 256), tf.uint8)
    cached = tf.data.Dataset.from_tensors((pixels, tf.zeros([BATCH], tf.int32))).repeat()
    model = network(keras, name, (size, size, 3))
    model.compile("sgd", loss="sparse_categorical_crossentropy", jit_compile=False)
    ideal = measure_ideal_step(model, cached, BATCH)
    times = []

    class Times(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            times.append(time.perf_counter())

    half = int(RUN_S * 1000 / ideal.ms)
    model.fit(cached, steps_per_epoch=2 * half, verbose=0, callbacks=[Times()])
    taken_ms = [1000 * (after - before) for before, after in itertools.pairwise(times)]
    first_ms, rest_ms = measure.median(taken_ms[:half]), measure.median(taken_ms[half:])
    print(f"ideal: {name}: {ideal.ms:.2f} ± {ideal.error_ms:.2f} ms, median {first_ms:.2f} ms, then {rest_ms:.2f} ms",
          flush=True)  # fmt: skip
    return ideal.ms, first_ms, rest_ms


def network(keras, name, shape):
    """A classifier of ten classes."""
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
