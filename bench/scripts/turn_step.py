"""A training script that writes down when each step ended.

A step gets a batch, casts it to floats, then makes `--launches` launches. A launch imitates an accelerator's kernel: a
thread keeps the processor busy, and then the script waits. `FOLDER/taken` is a file with a number: the fraction of a
processor that another program keeps busy. The script ends when this file is removed. At the end of each step, the
script adds a line to `FOLDER/steps`: the monotonic clock's time in seconds. Before the first step, the script measures
how many CPU seconds a cast takes, and writes this number to `FOLDER/arithmetic`.
"""

import argparse
import os
import subprocess
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import augmented
import headrace.tensorflow.horovod_keras as hvd
import tensorflow as tf
from headrace.tensorflow import data

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--folder", type=Path, required=True)
parser.add_argument("--times", type=int, required=True, help="number of times to augment each batch; 0: only flip it")
parser.add_argument("--batch_size", type=int, required=True)
parser.add_argument("--launches", type=int, required=True, help="number of launches in a step")
parser.add_argument("--compute_ms", type=float, required=True, help="CPU time of a launch")
parser.add_argument("--wait_ms", type=float, required=True, help="waiting time of a launch")
args, _ = parser.parse_known_args()
STEPS = 100
AT_ONCE = bytes(1 << 16)


def compute(ms):
    """Keep the processor busy for `ms` milliseconds, mostly without Python's lock, like code that launches kernels."""
    end_s = time.thread_time() + ms / 1000
    while time.thread_time() < end_s:
        zlib.crc32(AT_ONCE)


hvd.init()
tf.config.threading.set_intra_op_parallelism_threads(1)
train = augmented.batches(args.times, args.batch_size)
made_up = augmented.made_up(args.batch_size)
batches = iter(data.distribute(train, sharding="off").prefetch(2))
taken = args.folder / "taken"
began_s = time.process_time()
for _ in range(STEPS):
    tf.cast(made_up, tf.float32)
(args.folder / "arithmetic").write_text(str((time.process_time() - began_s) / STEPS))
subprocess.Popen([sys.executable, str(Path(__file__).with_name("spin.py")), str(taken), str(os.getpid())])
with (args.folder / "steps").open("w", buffering=1) as steps, ThreadPoolExecutor(1) as thread:
    while taken.exists():
        tf.cast(next(batches), tf.float32)
        for _ in range(args.launches):
            thread.submit(compute, args.compute_ms).result()
            time.sleep(args.wait_ms / 1000)
        print(time.monotonic(), file=steps)
