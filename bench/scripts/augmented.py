"""The pipeline of planned_step.py and turn_step.py. Run alone, it makes batches and discards them.

`augmented.py TIMES BATCH FILE` makes batches until it is killed. After each batch, it writes a line to FILE: the
monotonic clock's time in seconds.
"""

import sys
import time

import tensorflow as tf
from headrace.tensorflow.io import images


def batches(times, batch_size):
    """An endless dataset of uint8 batches `[batch_size, 32, 32, 3]`, augmented `times` times; 0: only a flip."""

    def augmented(x):
        for _ in range(times):
            x = images.blur(x)
            x = images.augment(x, rotation=0.05, zoom=0.2, shift=0.05, flip=True)
        return tf.image.flip_left_right(x)

    return tf.data.Dataset.from_tensors(made_up(batch_size)).repeat().map(augmented, tf.data.AUTOTUNE)


def made_up(batch_size):
    return tf.cast(tf.random.stateless_uniform((batch_size, 32, 32, 3), [1, 2], 0, 256, tf.int32), tf.uint8)


if __name__ == "__main__":
    with open(sys.argv[3], "w", buffering=1) as made:
        for _ in batches(int(sys.argv[1]), int(sys.argv[2])).prefetch(2):
            print(time.monotonic(), file=made)
