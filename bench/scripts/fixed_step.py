"""A training script of one rank that measures the data path. Its step waits where an accelerator would compute.

Each step takes a batch, casts it if it is uint8, and waits `--wait_ms`. The script measures steps on one batch in
memory (the ideal), then `--seconds` of the stream, and prints both as an event.
"""

import argparse
import time

import headrace.tensorflow.horovod_keras as hvd
import tensorflow as tf
from headrace.events import format_event
from headrace.tensorflow import data
from headrace.tensorflow.io import images

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--form", choices=["image_by_image", "ours", "light"], required=True)
parser.add_argument("--batch_size", type=int, default=512)
parser.add_argument("--wait_ms", type=float, default=1.0)
parser.add_argument("--seconds", type=float, default=15.0)
args, _ = parser.parse_known_args()
WARM_UP_STEPS, IDEAL_STEPS = 8, 40

hvd.init()
# One thread: on a host with one processor, more threads would only take turns.
tf.config.threading.set_intra_op_parallelism_threads(1)
shape = (args.batch_size, 32, 32, 3)


def pixels(shape):
    return tf.cast(tf.random.stateless_uniform(shape, [1, 2], 0, 256, tf.int32), tf.uint8)


def augmented(x):
    x = images.blur(x)
    return images.augment(x, rotation=0.05, zoom=0.2, shift=0.05, flip=True)


if args.form == "image_by_image":
    train = tf.data.Dataset.from_tensors(pixels(shape[1:])).repeat()
    train = train.map(lambda x: augmented(x[None])[0], tf.data.AUTOTUNE).batch(args.batch_size, drop_remainder=True)
elif args.form == "ours":
    train = tf.data.Dataset.from_tensors(pixels(shape)).repeat().map(augmented, tf.data.AUTOTUNE)
else:
    train = tf.data.Dataset.from_tensors(pixels(shape)).repeat()
# The source repeats one made-up batch. It cannot be split, so every worker makes its own stream.
train = data.distribute(train, sharding="off").prefetch(2)


def step(batch):
    tf.cast(batch, tf.float32)
    time.sleep(args.wait_ms / 1000)


in_memory = pixels(shape)
started = time.perf_counter()
for _ in range(IDEAL_STEPS):
    step(in_memory)
ideal_ms = (time.perf_counter() - started) / IDEAL_STEPS * 1000

batches = iter(train)
for _ in range(WARM_UP_STEPS):
    step(next(batches))
print(format_event("first_step"), flush=True)
steps, started = 0, time.perf_counter()
while time.perf_counter() - started < args.seconds:
    step(next(batches))
    steps += 1
seconds = time.perf_counter() - started
rate = steps * args.batch_size / seconds
print(format_event("measured", images_per_s=rate, step_ms=seconds / steps * 1000, ideal_ms=ideal_ms), flush=True)
