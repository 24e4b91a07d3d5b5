"""One service, one to eight ranks: is the stream split evenly, and how fast is it altogether?

    python -m bench.ranks [--repeats 5]

Each rank is a process that reads as fast as it can, without the lock-step of a real training, from the moment at
which all have their first batch. All draw from one shared stream of finite length with dynamic sharding; fairness
is the most batches that a rank got, divided by the least. Two workers.
"""

import json
import os
import subprocess
import sys
import time

from bench import measure

RANKS = (1, 2, 4, 8)
BATCHES_PER_RANK = 1000
BATCH = (64, 32, 32, 3)


def main(argv=None):
    repeats = measure.arguments(__doc__, argv).repeats
    got = {}
    with measure.service([(), ()]) as service:
        readers = [start_reader(service.address) for _ in range(max(RANKS))]
        try:
            for reader in readers:
                reader.stdout.readline()  # it has imported TensorFlow
            for repeat in range(repeats):
                for ranks in RANKS:
                    got.setdefault(ranks, []).append(read_together(readers[:ranks], f"{ranks}-{repeat}", ranks))
        finally:
            for reader in readers:
                reader.kill()
                reader.communicate()
    rows = [
        {
            "ranks": str(ranks),
            "batches/s": measure.median([run["batches_per_s"] for run in runs]),
            "max ÷ min": measure.median([run["fairness"] for run in runs]),
            "each once": f"{sum(run['exact'] for run in runs)} of {len(runs)}",
        }
        for ranks, runs in got.items()
    ]
    figures = {"fairness_8_ranks": measure.median([run["fairness"] for run in got[8]])}
    measure.leave("ranks", figures, rows, repeats=repeats)


def start_reader(address):
    environ = os.environ | {"HEADRACE_TF_DATA_MODE": "service", "HEADRACE_DISPATCHER": address}
    command = [sys.executable, "-u", "-m", "bench.ranks", "reader"]
    return subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL, text=True)  # fmt: skip


def read_together(readers, name, ranks):
    """One epoch, split by these readers."""
    tell(readers, json.dumps({"name": name, "batches": BATCHES_PER_RANK * ranks}))
    for reader in readers:
        reader.stdout.readline()  # it has its first batch
    started = time.perf_counter()
    tell(readers, "go")
    parts = [json.loads(reader.stdout.readline()) for reader in readers]
    seconds = time.perf_counter() - started
    counts = [len(part) for part in parts]
    seen = sorted(number for part in parts for number in part)
    return {
        "batches_per_s": sum(counts) / seconds,
        "fairness": max(counts) / max(min(counts), 1),
        "exact": seen == list(range(BATCHES_PER_RANK * ranks)),
    }


def tell(readers, line):
    for reader in readers:
        reader.stdin.write(line + "\n")
        reader.stdin.flush()


def reader():
    """Reads the streams named on standard input; prints the numbers of the batches that it got."""
    import tensorflow as tf
    from headrace.tensorflow import data

    tf.config.threading.set_intra_op_parallelism_threads(1)
    print("ready", flush=True)
    while line := sys.stdin.readline():
        job = json.loads(line)
        dataset = tf.data.Dataset.range(job["batches"]).map(lambda n: (n, tf.zeros(BATCH, tf.uint8)))
        stream = iter(data.distribute(dataset, job_name=job["name"]))
        got = [int(next(stream)[0])]
        print("first", flush=True)
        sys.stdin.readline()
        got += [int(number) for number, _ in stream]
        print(json.dumps(got), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    reader() if sys.argv[1:] == ["reader"] else main()
