"""Measure one service with one to eight ranks: are the ranks' shares equal, and what is the total rate?

    python -m bench.ranks [--repeats 5]

Each rank is a process. In training, ranks wait for each other at each step; here they do not. They begin together once
all have their first batch. Each rank reads its part of a finite dataset from two workers. Fairness is the largest
number of batches that a rank got, divided by the smallest. There are two cases. In the case "10 ms", ranks wait 10 ms
in each step. Then all ranks together request about as many batches as the service can make here. In the case
"at once", ranks read as fast as they can. Up to eight ranks share two processors, so the system's scheduler also
affects the fairness.

Then one worker serves a dataset whose shuffle has a buffer of 10,000 elements of 10 kB: to one rank in one measurement,
to eight in another. In plain tf.data this buffer takes 100 MB; headrace's workers make elements in shuffled order
instead. The memory figures are the growth of the worker's process, from before the reading to its peak.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from bench import measure

RANKS = (1, 2, 4, 8)
STEPS = {"10 ms": 10.0, "at once": 0.0}
BATCHES_PER_RANK = 500
BATCH = (64, 32, 32, 3)
BUFFER, ELEMENT_BYTES = 10_000, 10_000
MEMORY_RANKS = (1, 8)


def main(argv=None):
    repeats = measure.arguments(__doc__, argv).repeats
    got, memory = {}, {}
    with measure.service([(), ()]) as service, readers_of(service, max(RANKS)) as readers:
        for repeat in range(repeats):
            for step, wait_ms in STEPS.items():
                for ranks in RANKS:
                    run = read_together(readers[:ranks], f"{ranks}-{step}-{repeat}", wait_ms)
                    got.setdefault((ranks, step), []).append(run)
    for _ in range(repeats):
        for ranks in MEMORY_RANKS:
            memory.setdefault(ranks, []).append(megabytes(ranks))
    rows = [
        {
            "ranks": str(ranks),
            "step": step,
            "batches/s": measure.median([run["batches_per_s"] for run in runs]),
            "max ÷ min": measure.median([run["fairness"] for run in runs]),
            "each once": f"{sum(run['exact'] for run in runs)} of {len(runs)}",
        }
        for (ranks, step), runs in sorted(got.items())
    ]
    grown = {ranks: measure.median(values) for ranks, values in memory.items()}
    figures = {
        "fairness_8_ranks": measure.median([run["fairness"] for run in got[8, "10 ms"]]),
        "fairness_8_ranks_at_once": measure.median([run["fairness"] for run in got[8, "at once"]]),
        "worker_mb_1_rank": grown[1],
        "worker_mb_8_ranks": grown[8],
    }
    measure.leave("ranks", figures, rows, repeats=repeats)


@contextlib.contextmanager
def readers_of(service, number):
    """Start processes that read from the service. Yield the processes once they have imported TensorFlow."""
    readers = [start_reader(service.address) for _ in range(number)]
    try:
        for reader in readers:
            reader.stdout.readline()
        yield readers
    finally:
        for reader in readers:
            reader.kill()
            reader.communicate()


def megabytes(ranks):
    """Return how much a worker's memory grows at most, in MB, while `ranks` ranks read a shuffled dataset from it."""
    with measure.service([()]) as service, readers_of(service, ranks) as readers:
        (worker,) = service.workers
        before = memory_of(worker.pid, "VmRSS")
        read_together(readers, "memory", 0.0, shuffle=BUFFER)
        return memory_of(worker.pid, "VmHWM") - before


def memory_of(pid, field):
    """Return a process's memory in megabytes: `VmRSS` now, `VmHWM` at its peak."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition(f"{field}:")[2].split()[0]) / 1000


def start_reader(address):
    environ = os.environ | {"HEADRACE_TF_DATA_MODE": "service", "HEADRACE_DISPATCHER": address}
    command = [sys.executable, "-u", "-m", "bench.ranks", "reader"]
    return subprocess.Popen(
        command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def read_together(readers, name, wait_ms, **how):
    """Let all readers share one epoch; return its rate, its fairness, and whether each batch came exactly once."""
    batches = BATCHES_PER_RANK * len(readers)
    job = {"name": name, "batches": batches, "wait_ms": wait_ms, "ranks": len(readers)} | how
    for rank, reader in enumerate(readers):
        tell([reader], json.dumps(job | {"rank": rank}))
    for reader in readers:
        answer(reader)  # the reader has its first batch
    started = time.perf_counter()
    tell(readers, "go")
    parts = [json.loads(answer(reader)) for reader in readers]
    seconds = time.perf_counter() - started
    counts = [len(part) for part in parts]
    seen = sorted(number for part in parts for number in part)
    return {
        "batches_per_s": sum(counts) / seconds,
        "fairness": max(counts) / max(min(counts), 1),
        "exact": seen == list(range(batches)),
    }


def answer(reader):
    """Return the reader's next answer, without the lines that headrace logs before it."""
    while (line := reader.stdout.readline()) and not line.startswith(("first", "[")):
        pass
    return line


def tell(readers, line):
    for reader in readers:
        reader.stdin.write(line + "\n")
        reader.stdin.flush()


def reader():
    """For each line of standard input, read one stream of numbered batches, and print the numbers as a JSON list."""
    import tensorflow as tf
    from headrace.tensorflow import data
    from headrace.tensorflow.ranks import collectives

    tf.config.threading.set_intra_op_parallelism_threads(1)
    print("ready", flush=True)
    while line := sys.stdin.readline():
        job = json.loads(line)
        collectives.size, collectives.rank = (lambda job=job: job["ranks"]), (lambda job=job: job["rank"])
        collectives.of_all_ranks = lambda value, *_, job=job: [value] * job["ranks"]
        stream = iter(data.distribute(dataset_of(job), job_name=job["name"], uneven="keep"))
        got = [int(next(stream)[0])]
        print("first", flush=True)
        sys.stdin.readline()
        for number, _ in stream:
            got.append(int(number))
            time.sleep(job["wait_ms"] / 1000)
        print(json.dumps(got), flush=True)


def dataset_of(job):
    """Return a dataset of (number, batch). If elements are shuffled, number is that of the batch's first element."""
    import tensorflow as tf

    if "shuffle" not in job:
        return tf.data.Dataset.range(job["batches"]).map(lambda n: (n, tf.zeros(BATCH, tf.uint8)))
    elements = tf.data.Dataset.range(job["batches"] * 64).map(
        lambda n: (n, tf.fill([ELEMENT_BYTES], tf.cast(n % 256, tf.uint8)))
    )
    return elements.shuffle(job["shuffle"]).batch(64, drop_remainder=True).map(lambda n, x: (n[0], x))


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    reader() if sys.argv[1:] == ["reader"] else main()
