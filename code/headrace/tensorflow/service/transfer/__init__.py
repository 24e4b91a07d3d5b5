"""Batches from worker to trainer over plain TCP: a data transfer protocol for tf.data service, beside its gRPC.

`transfer.cc` is built for the installed TensorFlow once: by `make setup`, in the container image, else by the first
that asks for it. Workers and ranks load it. Where it cannot be built, gRPC carries the batches.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import secrets
import subprocess
import sys
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from headrace.errors import SetupError
from headrace.job.artifact_cache import LIBRARY_FOLDER
from headrace.job.settings import SECRET_VARIABLE
from headrace.tensorflow.service.transfer import worker_probe

PROTOCOL = "headrace"
"""The name under which tf.data service knows it."""
TENSORFLOW_VERSIONS = ("2.21.0",)
"""Those that `interface.h` was read off. Another may lay its structures out otherwise: there, gRPC carries batches."""
BUILD_LIMIT_S = 900.0
"""How long to wait for a library that is being built, perhaps by another process."""
SOURCES = ("transfer.cc", "client.h", "server.h", "handshake.h", "message.h", "connection.h", "interface.h", "build.py")


def tensorflow_dir() -> Path:
    """Where TensorFlow is installed; found without importing it. Raises `ImportError`."""
    # Not what is in sys.modules: TensorFlow adds folders to its own path, and `native` puts bare packages there.
    spec = PathFinder.find_spec("tensorflow")
    if spec is None or spec.origin is None:
        raise ImportError("tensorflow is not installed")
    return Path(spec.origin).parent


def tensorflow_version() -> str:
    """Of the TensorFlow installed. Raises `SetupError` where it is not one that the library is for."""
    for name in ("tensorflow", "tensorflow-cpu"):
        with contextlib.suppress(PackageNotFoundError):
            found = version(name).partition("+")[0]
            break
    else:
        found = "of unknown version"
    if found not in TENSORFLOW_VERSIONS:
        raise SetupError(f"{PROTOCOL}'s own transfer is for TensorFlow {', '.join(TENSORFLOW_VERSIONS)}, not {found}")
    return found


def library_path() -> Path:
    """Where the library is for this TensorFlow, once it is built. Raises `ImportError`, `SetupError`.

    Beside TensorFlow, which it belongs to. Its name tells TensorFlow, C library and sources: those of different
    sources never talk to each other.
    """
    digest = hashlib.sha256()
    for name in SOURCES:
        digest.update((Path(__file__).parent / name).read_bytes())
    libc = "-".join(filter(None, platform.libc_ver()))
    name = f"tensorflow-{tensorflow_version()}-{libc}-{platform.machine()}-{digest.hexdigest()[:16]}.so"
    return tensorflow_dir().parent / LIBRARY_FOLDER / name


def check_server(address: str) -> None:
    """Raise `SetupError` unless the protocol's server answers at `HOST:PORT`; TensorFlow would only log it."""
    port = address.rpartition(":")[2]
    try:
        worker_probe.enter(address, os.environ.get(SECRET_VARIABLE, "")).close()
    except OSError as error:
        raise SetupError(f"cannot send batches from {address}: {error}; is another program on port {port}?") from error


def build_environ() -> dict[str, str]:
    """For a process that imports headrace as this one did, leaves GPUs alone, and tries the library on itself."""
    paths = (str(Path(__file__).parents[4]), os.environ.get("PYTHONPATH"))
    own = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "CUDA_VISIBLE_DEVICES": "-1"}
    return os.environ | own | {SECRET_VARIABLE: secrets.token_hex()}


def batches_received(library: Path) -> int:
    """How many batches have come to this process by the protocol, once the library is loaded."""
    count = ctypes.CDLL(str(library)).headrace_transfer_batches
    count.restype = ctypes.c_int64
    return int(count())


def received(library: Path) -> dict[str, tuple[int, int]]:
    """Batches and bytes that have come to this process by the protocol, by the worker's HOST:PORT."""
    told = ctypes.CDLL(str(library)).headrace_transfer_received
    told.restype = ctypes.c_char_p
    rows = [line.split() for line in told().decode().splitlines()]
    return {address: (int(batches), int(size)) for address, batches, size in rows}


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
        problem = ctypes.CDLL(str(path)).headrace_transfer_problem
        problem.restype = ctypes.c_char_p
        if problem():
            raise SetupError(problem().decode())
    except (ImportError, OSError, SetupError, subprocess.TimeoutExpired) as error:
        print(
            f"batches travel over gRPC, {PROTOCOL}'s own transfer does not load: {error}", file=sys.stderr, flush=True
        )
        return False
    return True
