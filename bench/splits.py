"""Measure what it costs to ask the dispatcher for every element, and what blocks of elements save.

    python -m bench.splits [--repeats 5]

With dynamic sharding, a worker asks the dispatcher for each element of the dataset's source. The source may be a range
of numbers, the rows of a table, or the files or blocks of `data.Shards`. The pipeline only makes batches of a hundred
numbers, on one worker.
"""

import os

from bench import measure

BATCH, SECONDS = 100, 2.0


def main(argv=None):
    repeats = measure.arguments(__doc__, argv).repeats
    import tensorflow as tf
    from headrace.tensorflow import data

    forms = {
        "numbers of a range": lambda: tf.data.Dataset.range(10**8).batch(BATCH),
        "Shards.of_indices, blocks of 256": lambda: data.Shards.of_indices(10**6).tagged().batch(BATCH),
    }
    rates = {}
    with measure.service([()]) as service:
        os.environ |= {"HEADRACE_TF_DATA_MODE": "service", "HEADRACE_DISPATCHER": service.address}
        for repeat in range(repeats):
            for form, dataset in forms.items():
                batches = iter(data.distribute(dataset(), job_name=f"{form}-{repeat}"))
                rate = measure.per_second(lambda batches=batches: next(batches), SECONDS, warm_up=1)
                rates.setdefault(form, []).append(rate * BATCH)
    rows = [{"the dataset begins with": form, "elements/s": measure.median(values)} for form, values in rates.items()]
    single, blocks = rates.values()
    figures = {"splits_blocks_vs_elements": measure.median([b / a for a, b in zip(single, blocks, strict=True)])}
    measure.leave("splits", figures, rows, repeats=repeats)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    main()
