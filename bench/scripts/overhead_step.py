"""A training script that uses either plain Keras and Horovod, or headrace. bench.overhead runs the script on each rank.

Each rank prints one JSON object, with the ms of a step, the seconds until the first step ended, and its peak memory.
"""

import argparse
import json
import os
import resource
import sys
import time

os.environ.pop("HEADRACE_TF_DATA_MODE", None)
import horovod.tensorflow as plain
import keras
import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("way", choices=["plain", "headrace"])
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--model", choices=["small_cnn", "resnet50", "tiny"], default="small_cnn")
parser.add_argument("--num_groups", type=int, default=0, help="groups of gradients; only with headrace")
args = parser.parse_args()
WARM_UP_STEPS, BATCH, IMAGES = min(30, args.steps // 3), 32, 2048
EVERY, FIXED_WORK = 100, 50_000


def made_up():
    random = np.random.default_rng(0)
    if args.model == "tiny":
        return random.random((IMAGES, 4), "float32"), random.random((IMAGES, 1), "float32")
    return random.integers(0, 256, (IMAGES, 32, 32, 3), "uint8"), random.integers(0, 10, IMAGES)


def make_model():
    loss_of_logits = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if args.model == "tiny":
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]), "mse"
    layers = [keras.Input((32, 32, 3), dtype="uint8"), keras.layers.Rescaling(1 / 255)]
    if args.model == "resnet50":
        backbone = keras.applications.ResNet50(weights=None, include_top=False, input_shape=(32, 32, 3), pooling="avg")
        return keras.Sequential([*layers, backbone, keras.layers.Dense(10)]), loss_of_logits
    for filters in (32, 64, 64, 128):
        layers += [keras.layers.Conv2D(filters, 3, padding="same", activation="relu"), keras.layers.MaxPooling2D()]
    layers += [keras.layers.Flatten(), keras.layers.Dense(256, "relu"), keras.layers.Dense(10)]
    return keras.Sequential(layers), loss_of_logits


class Averaging(keras.optimizers.SGD):
    """SGD that averages gradients over all ranks with plain Horovod."""

    def apply(self, grads, trainable_variables=None):
        super().apply(plain.grouped_allreduce(list(grads), op=plain.Average), trainable_variables)


class Broadcast(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        plain.broadcast_variables([each.value for each in self.model.variables], root_rank=0)


class Clock(keras.callbacks.Callback):
    """Records when steps begin, how fast the machine is, and how much memory the process uses."""

    def __init__(self):
        super().__init__()
        self.at, self.fixed_work, self.memory = np.ones(args.steps + 1), [], []  # np.zeros would add pages later

    def on_train_batch_begin(self, batch, logs=None):
        if batch % EVERY == 0:
            began = time.perf_counter()
            sum(range(FIXED_WORK))
            self.fixed_work.append(time.perf_counter() - began)
        self.at[batch] = time.perf_counter()
        if batch == args.steps // 10:
            self.memory.append(resident_bytes())

    def on_epoch_end(self, epoch, logs=None):
        self.at[-1] = time.perf_counter()
        self.memory.append(resident_bytes())

    def last_vs_first(self):
        """Return the slowdown within the run: the step time in the last tenth, divided by the step time in the first
        tenth. Both are relative to the time of a fixed piece of work, because the machine's speed changes."""
        tenths = zip(np.array_split(np.diff(self.at), 10), np.array_split(self.fixed_work, 10), strict=True)
        first, *_, last = (np.median(taken) / np.median(fixed_work) for taken, fixed_work in tenths)
        return float(last / first)


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


plain_data = tf.data.Dataset.from_tensor_slices(made_up())
if args.way == "plain":
    plain.init()
    train = plain_data.shard(plain.size(), plain.rank()).shuffle(IMAGES).repeat().batch(BATCH).prefetch(2)
    optimizer, callbacks = Averaging(0.01), [Broadcast()]
else:
    import headrace.tensorflow.horovod_keras as hvd
    from headrace.tensorflow import data
    from headrace.tensorflow.callbacks import Measure

    hvd.init()
    train = data.distribute(plain_data.shuffle(IMAGES).repeat().batch(BATCH)).prefetch(2)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), num_groups=args.num_groups)
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        Measure(train, BATCH, log_every=100),
    ]
model, loss = make_model()
model.compile(optimizer, loss, jit_compile=False)
clock = Clock()
model.fit(train, steps_per_epoch=args.steps, verbose=0, callbacks=[*callbacks, clock])
taken = np.diff(clock.at)
began = time.perf_counter() - (time.time() - float(os.environ["BENCH_BEGAN"]))
print(
    "measured "
    + json.dumps(
        {
            "step_ms": float(np.mean(taken[WARM_UP_STEPS:])) * 1000,
            "last_vs_first": clock.last_vs_first(),
            "memory_last_vs_first": clock.memory[-1] / clock.memory[0],
            "first_step_s": clock.at[1] - began,
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
    ),
    flush=True,
)
sys.stdout.flush()
