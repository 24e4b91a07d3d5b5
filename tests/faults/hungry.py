"""Trains until rank 1, in a memory cgroup of its own, wants more than that allows: the kernel kills it."""

import os
import sys
from pathlib import Path

import headrace.tensorflow.horovod_keras as hvd
import numpy as np
import tensorflow as tf

LIMIT_BYTES = 2 << 30


def limit_memory():
    """As a container with a memory limit does; cgroup v2 or v1."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    version1 = [path for _, controllers, path in lines if controllers == "memory"]
    mount, limit = ("memory", "memory.limit_in_bytes") if version1 else ("", "memory.max")
    group = Path("/sys/fs/cgroup", mount, (version1 or [lines[-1][2]])[0].strip("/"), f"headrace-test-{os.getpid()}")
    print(f"limited in {group}", flush=True)
    try:
        group.mkdir()
        (group / limit).write_text(str(LIMIT_BYTES))
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        sys.exit(f"no memory cgroup here: {error}")


hvd.init()
if hvd.rank() == 1:
    limit_memory()
held = []
while True:
    hvd.allreduce(tf.constant(1.0), name="step")
    if hvd.rank() == 1:
        held.append(np.ones(20 << 20))
