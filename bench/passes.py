"""What the end of a pass costs: epochs and evaluations of a stream that has an end.

    python -m bench.passes [--repeats 5]

A reader knows that a pass is over once the dispatcher says so, and asks it now and then. The pipeline makes twenty
batches of numbers on two workers, which take next to no time. A figure is seconds for each pass.
"""

import os
import time

from bench import measure

BATCHES, BATCH, PASSES = 20, 32, 5


def main(argv=None):
    repeats = measure.arguments(__doc__, argv).repeats
    import tensorflow as tf
    from headrace.tensorflow import data

    dataset = tf.data.Dataset.range(BATCHES * BATCH).batch(BATCH)
    times = {}
    with measure.service([(), ()]) as service:
        os.environ |= {"HEADRACE_TF_DATA_MODE": "service", "HEADRACE_DISPATCHER": service.address}
        for repeat in range(repeats):
            streams = {
                "data.distribute": data.distribute(dataset, job_name=f"ours-{repeat}"),
                "TensorFlow's distribute": dataset.apply(
                    tf.data.experimental.service.distribute(
                        tf.data.experimental.service.ShardingPolicy.DYNAMIC,
                        f"grpc://{service.address}",
                        job_name=f"theirs-{repeat}",
                    )
                ),
            }
            for name, stream in streams.items():
                start = time.perf_counter()
                for _ in range(PASSES):
                    assert sum(len(batch) for batch in stream) == BATCHES * BATCH
                times.setdefault(name, []).append((time.perf_counter() - start) / PASSES)
    rows = [{"stream": name, "ms/pass": 1000 * measure.median(values)} for name, values in times.items()]
    ours, theirs = times.values()
    figures = {"passes_vs_tf_default": measure.median([b / a for a, b in zip(ours, theirs, strict=True)])}
    measure.leave("passes", figures, rows, repeats=repeats)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    main()
