"""Batches of every kind from a worker in one process to a reader in another: `build.py` asks whether they arrive."""

from __future__ import annotations

import ctypes
import socket
import subprocess
import sys
import tempfile

SERVERS = """
import ctypes, pathlib, sys, threading
from headrace.tensorflow import native
library, work_dir, dispatcher, worker, transfer = sys.argv[1:]
kept = native.start_dispatcher(int(dispatcher), pathlib.Path(work_dir))
ctypes.CDLL(library)
also = native.start_worker(int(worker), f"127.0.0.1:{worker}", f"127.0.0.1:{dispatcher}", 100, 30_000,
                           f"127.0.0.1:{transfer}")
print("ready", flush=True)
threading.Event().wait()
"""


def main(library: str) -> int:
    """0 when what was read is what was made."""
    dispatcher, worker, transfer = (str(port) for port in _free_ports(3))
    with tempfile.TemporaryDirectory(prefix="headrace-trial-") as work_dir:
        servers = subprocess.Popen(
            [sys.executable, "-c", SERVERS, library, work_dir, dispatcher, worker, transfer],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            import tensorflow as tf

            ctypes.CDLL(library)
            assert servers.stdout is not None
            if servers.stdout.readline() != "ready\n":
                raise RuntimeError("the servers did not start")
            return _compare(tf, f"grpc://127.0.0.1:{dispatcher}")
        finally:
            servers.kill()
            servers.communicate()


def _compare(tf, service: str) -> int:  # type: ignore[no-untyped-def]
    made = tf.data.Dataset.range(5).map(
        lambda n: {
            "large": tf.fill([300, 1000], tf.cast(n, tf.float32)),
            "bytes": tf.cast(tf.fill([3, 1], n), tf.uint8),
            "text": tf.strings.as_string(tf.range(n)),
            "scalar": n,
            "half": tf.cast(tf.fill([7], n), tf.bfloat16),
        }
    )
    read = made.apply(
        tf.data.experimental.service.distribute(
            "parallel_epochs", service, compression=None, data_transfer_protocol="headrace"
        )
    )
    ours, theirs = (
        sorted(repr({key: value.tobytes() for key, value in each.items()}) for each in way.as_numpy_iterator())
        for way in (read, made.map(lambda each: each))
    )
    return 0 if ours == theirs else 1


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
