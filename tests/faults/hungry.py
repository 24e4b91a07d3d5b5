"""Train until rank 1 exceeds the limit of its own memory cgroup, and the kernel kills it."""

import os
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

LIMIT_BYTES = 1 << 30


def limit_memory():
    """Limit this process's memory as a container does, with cgroup v2 or v1."""
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


if MPI.COMM_WORLD.rank == 1:
    limit_memory()
held = []
while True:
    MPI.COMM_WORLD.Barrier()
    time.sleep(0.5)  # the launcher looks for new processes every 5 s; the limit comes after 8 s
    if MPI.COMM_WORLD.rank == 1:
        held.append(np.ones(8 << 20))
