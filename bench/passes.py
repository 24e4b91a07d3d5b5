"""Measure how long a short pass over a finite stream takes, such as a short epoch or an evaluation.

    python -m bench.passes [--repeats 5]

A reader asks the dispatcher now and then whether the pass is over. Two cases are measured. "end": two workers make
twenty batches of numbers. This takes almost no time, so only the pass itself costs time. "slow worker": a listing is
shuffled as a whole and then mapped by a costly function. One of the two workers takes ten times as long for this
function. Figures are milliseconds per pass.
"""

import os
import time

from bench import measure

BATCHES, BATCH, PASSES = 20, 32, 5
SLOW_ELEMENTS, SLOW_BATCH, SLOW_PASSES = 1600, 8, 3
TIMES_SLOWER = 10


def main(argv=None):
    repeats = measure.arguments(__doc__, argv).repeats
    import tensorflow as tf

    first, second = measure.two_processors()
    short = tf.data.Dataset.range(BATCHES * BATCH).batch(BATCH)
    shuffled = tf.data.Dataset.range(SLOW_ELEMENTS).shuffle(SLOW_ELEMENTS).map(costly).batch(SLOW_BATCH)
    rows, figures = [], {}
    for name, dataset, passes, streams in (
        ("passes_vs_tf_default", short, PASSES, {"end, data.distribute": ours, "end, TensorFlow's": theirs}),
        ("passes_vs_shuffling_workers", shuffled, SLOW_PASSES,
         {"slow worker, data.distribute": ours, "slow worker, which shuffles": as_it_is}),
    ):  # fmt: skip
        times = {name: [] for name in streams}
        with measure.service([(first,), (second,)], SLOW="as-one-of-two") as service:
            os.environ |= {"HEADRACE_TF_DATA_MODE": "service", "HEADRACE_DISPATCHER": service.address}
            for repeat in range(repeats):
                for which, distribute in streams.items():
                    stream = distribute(dataset, f"{distribute.__name__}-{repeat}")
                    start = time.perf_counter()
                    for _ in range(passes):
                        assert sum(1 for _ in stream) >= int(dataset.cardinality())
                    times[which].append((time.perf_counter() - start) / passes)
        rows += [{"pass": which, "ms": 1000 * measure.median(values)} for which, values in times.items()]
        fast, slow = times.values()
        figures[name] = measure.median([b / a for a, b in zip(fast, slow, strict=True)])
    measure.leave("passes", figures, rows, repeats=repeats)


def ours(dataset, name):
    from headrace.tensorflow import data

    return data.distribute(dataset, job_name=name)


def as_it_is(dataset, name):
    """Distribute the dataset unchanged, so that the workers shuffle."""
    from headrace.tensorflow import data

    return data.distribute(dataset, job_name=name, exact=False)


def theirs(dataset, name):
    """Distribute the dataset with TensorFlow's own call."""
    import tensorflow as tf

    dynamic = tf.data.experimental.service.ShardingPolicy.DYNAMIC
    address = f"grpc://{os.environ['HEADRACE_DISPATCHER']}"
    return dataset.apply(tf.data.experimental.service.distribute(dynamic, address, job_name=name))


def costly(number):
    """Return `number` after a millisecond of work, or after ten on the slow worker."""
    import tensorflow as tf

    slow = tf.strings.regex_full_match(tf.io.read_file("/proc/self/environ"), r"(.|\n)*SLOW=as-one-of-two(.|\n)*")
    times = tf.where(slow, TIMES_SLOWER, 1)
    some = tf.random.stateless_uniform([200_000], [0, 0])
    made = tf.while_loop(lambda n, _: n < times, lambda n, x: (n + 1, tf.sin(x)), (0, some))[1]
    return number + tf.cast(tf.reduce_sum(made) * 0, tf.int64)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    main()
