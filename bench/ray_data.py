"""Measure the image operations of bench/pipeline.py in Ray Data.

`python -m bench.ray_data FOLDER_OF_RAY SECONDS` prints images per second as JSON.
"""

import json
import os
import sys
import time

from bench.pipeline import BATCH, SHAPE, augmented

ACTORS = 2
IMAGES_PER_S_AT_MOST = 40_000
"""Upper limit of Ray Data's rate in images/s. The dataset has as many images as would be read in SECONDS at this rate.
The measurement begins after the first batch."""


class Augment:
    """An actor with one processor and one TensorFlow thread."""

    def __init__(self):
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        self._call = tf.function(augmented)

    def __call__(self, batch):
        return {"pixels": self._call(batch["pixels"]).numpy()}


def main(folder, seconds):
    sys.path.append(folder)  # last, so that TensorFlow's numpy and protobuf come first
    os.environ |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TF_CPP_MIN_LOG_LEVEL": "3"}
    import numpy as np
    import ray

    ray.init(num_cpus=2 * ACTORS, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    batches = int(seconds * IMAGES_PER_S_AT_MOST) // BATCH
    pixels = np.random.default_rng(0).integers(0, 256, (BATCH, *SHAPE), dtype=np.uint8)
    stream = ray.data.range(batches * BATCH, override_num_blocks=batches)
    stream = stream.map_batches(lambda _: {"pixels": pixels}, batch_size=None)
    stream = stream.map_batches(Augment, batch_size=BATCH, concurrency=ACTORS, num_cpus=1)
    count, started = 0, 0.0
    for batch in stream.iter_batches(batch_size=BATCH, prefetch_batches=4):
        if started:
            count += len(batch["pixels"])
        started = started or time.perf_counter()
    print(json.dumps({"images_per_s": count / (time.perf_counter() - started)}))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
