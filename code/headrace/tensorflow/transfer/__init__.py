"""Batches from worker to trainer over plain TCP: a data transfer protocol for tf.data service, beside its gRPC.

`transfer.cc` is built for the installed TensorFlow once: by `make setup`, in the container image, else by the first
that asks for it. Workers and ranks load it. Where it cannot be built, gRPC carries the batches.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import socket
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from headrace.errors import SetupError

PROTOCOL = "headrace"
"""The name under which tf.data service knows it."""
HELLO = b"headrac1"
"""What both ends of a connection open with (`message.h`)."""
HELLO_LIMIT_S = 5.0
BUILD_LIMIT_S = 900.0
"""How long to wait for a library that is being built, perhaps by another process."""
SOURCES = ("transfer.cc", "message.h", "connection.h", "interface.h", "build.py")


def tensorflow_dir() -> Path:
    """Where TensorFlow is installed; found without importing it. Raises `ImportError`."""
    # Not what is in sys.modules: TensorFlow adds folders to its own path, and `native` puts bare packages there.
    spec = PathFinder.find_spec("tensorflow")
    if spec is None or spec.origin is None:
        raise ImportError("tensorflow is not installed")
    return Path(spec.origin).parent


def library_path() -> Path:
    """Where the library is for this TensorFlow, once it is built. Raises `ImportError`, `OSError`.

    Beside TensorFlow, which it belongs to. Its name tells sources and TensorFlow: those of different
    sources never talk to each other.
    """
    tensorflow = tensorflow_dir()
    digest = hashlib.sha256()
    for name in SOURCES:
        digest.update((Path(__file__).parent / name).read_bytes())
    size = (tensorflow / "libtensorflow_cc.so.2").stat().st_size
    return tensorflow.parent / "headrace_transfer" / f"{digest.hexdigest()[:16]}-{size:x}.so"


def check_server(address: str) -> None:
    """Raise `SetupError` unless the protocol's server answers at `HOST:PORT`; TensorFlow would only log it."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), HELLO_LIMIT_S) as connection:
            connection.settimeout(HELLO_LIMIT_S)
            connection.sendall(HELLO)
            if connection.recv(len(HELLO), socket.MSG_WAITALL) == HELLO:
                return
            problem = "something else answers"
    except OSError as error:
        problem = str(error)
    raise SetupError(f"cannot send batches from {address}: {problem}; is another program on port {port}?")


def build_environ() -> dict[str, str]:
    """For a process that imports headrace as this one did, and leaves GPUs alone."""
    paths = (str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH"))
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "CUDA_VISIBLE_DEVICES": "-1"}


def batches_received(library: Path) -> int:
    """How many batches have come to this process by the protocol, once the library is loaded."""
    count = ctypes.CDLL(str(library)).headrace_transfer_batches
    count.restype = ctypes.c_int64
    return int(count())


@functools.cache
def load() -> bool:
    """Whether the protocol can be used in this process, from now on. Builds it where that has not been tried."""
    try:
        path = library_path()
        if not path.is_file():
            command = [sys.executable, "-m", f"{__name__}.build", "--once", f"--library={path}"]
            subprocess.run(command, env=build_environ(), check=False, timeout=BUILD_LIMIT_S)
        if not path.is_file():
            return False
        ctypes.CDLL(str(path))
    except (ImportError, OSError, subprocess.TimeoutExpired) as error:
        print(
            f"batches travel over gRPC, {PROTOCOL}'s own transfer does not load: {error}", file=sys.stderr, flush=True
        )
        return False
    return True
