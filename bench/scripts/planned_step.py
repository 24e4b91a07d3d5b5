"""A training script whose step only waits for a fixed time, where an accelerator would compute.

First it makes `--ideal_steps` steps on one batch in memory. After a warm-up, it reads the stream for `--seconds`. A
meter measures the steps, as in `fit`. bench/plan.py predicts step times from rank 0's report. The event `measured` has
the mean step time of the stream after the warm-up.
"""

import argparse
import time

import augmented
import headrace.tensorflow.horovod_keras as hvd
import tensorflow as tf
from headrace.events import say
from headrace.tensorflow import data
from headrace.tensorflow.keras.rank_meter import open_meter
from headrace.training.ideal_step import IdealStep

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--times", type=int, required=True, help="number of times to augment each batch; 0: only flip it")
parser.add_argument("--batch_size", type=int, default=512)
parser.add_argument("--wait_ms", type=float, default=15.0)
parser.add_argument("--seconds", type=float, default=12.0)
parser.add_argument("--ideal_steps", type=int, default=40)
args, _ = parser.parse_known_args()
WARM_UP_STEPS = 30

hvd.init()
tf.config.threading.set_intra_op_parallelism_threads(1)
made_up = augmented.made_up(args.batch_size)
train = augmented.batches(args.times, args.batch_size)
train = data.distribute(train, sharding="off").prefetch(2)


def step(batch):
    tf.cast(batch, tf.float32)
    time.sleep(args.wait_ms / 1000)


times_s, cpu_s = [], time.process_time()
for _ in range(args.ideal_steps):
    started = time.perf_counter()
    step(made_up)
    times_s.append(time.perf_counter() - started)
meter = open_meter(args.batch_size, 50)
meter.begin(IdealStep.of(times_s, time.process_time() - cpu_s))
batches = iter(train)
for _ in range(WARM_UP_STEPS):
    step(next(batches))
began = last = time.perf_counter()
steps = 0
while last - began < args.seconds:
    step(next(batches))
    now = time.perf_counter()
    meter.steps(1, now - last)
    last, steps = now, steps + 1
meter.end()
say("measured", step_ms=(last - began) / steps * 1000)
