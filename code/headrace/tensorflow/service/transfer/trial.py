"""Try a transfer library for `build.py`: send batches of every kind from a worker to a reader in another process."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from headrace.cluster.addresses import free_ports
from headrace.tensorflow.service.transfer import PROTOCOL, batches_received

ELEMENTS, TRIES = 5, 3
"""Batches per try, and limit on tries. TensorFlow falls back to gRPC in a try if connecting takes over a second."""

SERVERS = """
import ctypes, pathlib, sys
library, work_dir, dispatcher, worker, transfer = sys.argv[1:]
ctypes.CDLL(library)
from headrace.tensorflow.service import pywrap_servers as native
kept = native.start_dispatcher(int(dispatcher), pathlib.Path(work_dir))
also = native.start_worker(int(worker), f"127.0.0.1:{worker}", f"127.0.0.1:{dispatcher}", 100, 30_000,
                           f"127.0.0.1:{transfer}")
print("ready", flush=True)
sys.stdin.read()  # until the reader ends or is killed
"""


def main(library: str) -> int:
    """Send all batches by headrace's protocol. Return 0 if they arrive unchanged, else print why not and return 1."""
    dispatcher, worker, transfer = (str(port) for port in free_ports(3))
    with tempfile.TemporaryDirectory(prefix="headrace-trial-") as work_dir:
        command = [sys.executable, "-c", SERVERS, library, work_dir, dispatcher, worker, transfer]
        servers = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            ctypes.CDLL(library)
            import tensorflow as tf

            assert servers.stdout is not None
            if servers.stdout.readline() != "ready\n":
                raise RuntimeError("the servers did not start")
            service = f"grpc://127.0.0.1:{dispatcher}"
            for _ in range(TRIES):
                wrong = _differences(tf, service)
                if wrong or batches_received(Path(library)) >= ELEMENTS:
                    break
        finally:
            servers.kill()
            servers.communicate()
    if batches_received(Path(library)) < ELEMENTS:
        wrong.append("the batches were not sent by headrace's transfer protocol")
    print("\n".join(wrong))
    return int(bool(wrong))


def _differences(tf: Any, service: str) -> list[str]:
    made = tf.data.Dataset.range(ELEMENTS).map(
        lambda n: {
            "large": tf.random.stateless_uniform([300, 1000], [n, 1]),
            "pixels": tf.cast(tf.random.stateless_uniform([64, 50, 50, 3], [n, 2], 0, 256, tf.int32), tf.uint8),
            "bytes": tf.cast(tf.fill([3, 1], n), tf.uint8),
            "text": tf.strings.as_string(tf.range(n)),
            "scalar": n,
            "half": tf.cast(tf.fill([7], n), tf.bfloat16),
        }
    )
    how = tf.data.experimental.service.distribute(
        "parallel_epochs", service, compression=None, data_transfer_protocol=PROTOCOL
    )
    expected = list(made.as_numpy_iterator())
    arrived = sorted(made.apply(how).as_numpy_iterator(), key=lambda element: int(element["scalar"]))
    if len(arrived) != len(expected):
        return [f"{len(arrived)} of {len(expected)} elements arrived"]
    return [
        f"element {n}: {name} has changed on the way"
        for n, (one, other) in enumerate(zip(expected, arrived, strict=True))
        for name in one
        if one[name].tolist() != other[name].tolist()
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
