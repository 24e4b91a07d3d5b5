"""How well the ideal step time tells what a step costs that waits for nothing.

    python -m bench.ideal [--repeats 10]

Three models train on one batch in memory, so no step waits. The ideal step time is measured before, as in any job, and
compared with the median of 60 steps after. "before the cap": as measured; runs report at most the median.
"""

import itertools
import time

from bench import measure

STEPS = 60
MODELS = {"dense": 32, "small_cnn": 64, "resnet50": 32}
"""With the images' size in pixels."""
BATCH = 32


def main(argv=None):
    repeats = measure.arguments(__doc__, argv, repeats=10).repeats
    import keras
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(2)
    rows, worst = [], 0.0
    for name, size in MODELS.items():
        errors, medians = [], []
        for number in range(repeats):
            ideal_ms, error_ms, median_ms = one(keras, tf, name, size)
            errors.append(ideal_ms / median_ms - 1)
            medians.append(median_ms)
            print(
                f"ideal: {name} {number + 1}: {ideal_ms:.2f} ± {error_ms:.2f} ms, median {median_ms:.2f} ms", flush=True
            )
        worst = max(worst, *map(abs, errors))
        rows.append({"model": name, "median step ms": measure.median(medians), "least error": f"{min(errors):+.1%}",
                     "median error": f"{measure.median(errors):+.1%}", "most": f"{max(errors):+.1%}"})  # fmt: skip
    measure.leave("ideal", {"ideal_error_max": worst}, rows, repeats=repeats)


def one(keras, tf, name, size):
    """The ideal step time, its error, and the median step time of the steps after it; milliseconds."""
    from headrace.tensorflow.ideal import measure_ideal_step

    keras.backend.clear_session()
    steps = 10 if name == "resnet50" else STEPS
    pixels = tf.cast(tf.random.uniform([BATCH, size, size, 3], 0, 256), tf.uint8)
    cached = tf.data.Dataset.from_tensors((pixels, tf.zeros([BATCH], tf.int32))).repeat()
    model = network(keras, name, (size, size, 3))
    model.compile("sgd", loss="sparse_categorical_crossentropy", jit_compile=False)
    ideal = measure_ideal_step(model, cached, BATCH)
    times = []

    class Times(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            times.append(time.perf_counter())

    model.fit(cached, steps_per_epoch=steps, verbose=0, callbacks=[Times()])
    taken = [after - before for before, after in itertools.pairwise(times)]
    return ideal.ms, ideal.error_ms, measure.median(taken) * 1000


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
