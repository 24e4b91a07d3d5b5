"""A data transfer protocol for tf.data service. It sends batches from workers to trainers over plain TCP, not gRPC.

`make setup` and docker/Dockerfile build `transfer.cc` for the installed TensorFlow. Without these, the first process
that needs the library builds it. Workers and ranks load the library. If the build fails, gRPC carries the batches.
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
import time
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from headrace.errors import DeadlineError, SetupError
from headrace.job.artifact_cache import LIBRARY_FOLDER
from headrace.job.settings import SECRET_VARIABLE
from headrace.training.handshake import Handshake

PROTOCOL = "headrace"
"""The protocol's name in tf.data service."""
HANDSHAKE = Handshake(b"headrac2", b"headrace transfer")
"""Handshake that opens each connection, as in `handshake.h`."""
TENSORFLOW_VERSIONS = ("2.21.0",)
"""TensorFlow versions whose structures `interface.h` describes. With any other version gRPC carries the batches."""
BUILD_LIMIT_S = 900.0
"""Seconds to wait for a library that is being built, perhaps by another process."""
SOURCES = ("transfer.cc", "client.h", "server.h", "handshake.h", "message.h", "connection.h", "interface.h", "build.py")
_POLL_S = 0.05


def tensorflow_dir() -> Path:
    """Return the folder of the installed TensorFlow, without importing it. Raise `ImportError` if there is none."""
    # sys.modules may mislead: TensorFlow adds folders to its own path, and `pywrap_servers` puts empty packages there.
    spec = PathFinder.find_spec("tensorflow")
    if spec is None or spec.origin is None:
        raise ImportError("tensorflow is not installed")
    return Path(spec.origin).parent


def tensorflow_version() -> str:
    """Return the installed TensorFlow's version. Raise `SetupError` if `transfer.cc` does not support this version."""
    for name in ("tensorflow", "tensorflow-cpu"):
        with contextlib.suppress(PackageNotFoundError):
            found = version(name).partition("+")[0]
            break
    else:
        found = "an unknown version"
    if found not in TENSORFLOW_VERSIONS:
        raise SetupError(f"{PROTOCOL}'s own protocol needs TensorFlow {', '.join(TENSORFLOW_VERSIONS)}, not {found}")
    return found


def library_path() -> Path:
    """Return the library's path. Raise `ImportError` or `SetupError` if TensorFlow is missing or not supported.

    Once built, the library lies beside TensorFlow. Its name holds the versions of TensorFlow and the C library, and a
    digest of the sources, so that a process never loads a library that was built from other sources.
    """
    digest = hashlib.sha256()
    for name in SOURCES:
        digest.update((Path(__file__).parent / name).read_bytes())
    libc = "-".join(filter(None, platform.libc_ver()))
    name = f"tensorflow-{tensorflow_version()}-{libc}-{platform.machine()}-{digest.hexdigest()[:16]}.so"
    return tensorflow_dir().parent / LIBRARY_FOLDER / name


def check_server(address: str) -> None:
    """Raise `SetupError` if no transfer server answers at `HOST:PORT`. TensorFlow only logs a failed start."""
    port, secret = address.rpartition(":")[2], os.environ.get(SECRET_VARIABLE, "")
    try:
        try:
            HANDSHAKE.enter(address, secret).close()
        except TimeoutError:  # the server runs in this process, which may have been paused
            HANDSHAKE.enter(address, secret).close()
    except OSError as error:
        raise SetupError(f"cannot send batches from {address}: {error}; is another program on port {port}?") from error


def agreed_protocol(path: Path, timeout_s: float) -> str:
    """Return the protocol that carries a job's batches. Wait for the file in which the launcher names it.

    Raises:
        DeadlineError: there is no such file after `timeout_s` seconds.
    """
    deadline = time.monotonic() + timeout_s
    while not path.is_file():
        if time.monotonic() > deadline:
            raise DeadlineError(
                f"the leader has not chosen a protocol for workers' batches within startup_timeout_s={timeout_s:g}: "
                "read in the leader's log which data host the leader waits for"
            )
        time.sleep(_POLL_S)
    return path.read_text(encoding="utf-8").strip()


def build_environ() -> dict[str, str]:
    """Return the environment to build or try the library in. It hides GPUs, and lets Python import this headrace."""
    paths = (str(Path(__file__).parents[4]), os.environ.get("PYTHONPATH"))
    own = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "CUDA_VISIBLE_DEVICES": "-1"}
    return os.environ | own | {SECRET_VARIABLE: secrets.token_hex()}


def batches_received(library: Path) -> int:
    """Return how many batches this process has received by headrace's protocol; the library must be loaded."""
    count = ctypes.CDLL(str(library)).headrace_transfer_batches
    count.restype = ctypes.c_int64
    return int(count())


def received(library: Path) -> dict[str, tuple[int, int]]:
    """Return how many batches and bytes this process got from each worker (HOST:PORT) by headrace's protocol."""
    told = ctypes.CDLL(str(library)).headrace_transfer_received
    told.restype = ctypes.c_char_p
    rows = [line.split() for line in told().decode().splitlines()]
    return {address: (int(batches), int(size)) for address, batches, size in rows}


@functools.cache
def load() -> bool:
    """Load the library. If it is missing, try once to build it. Return whether the library is loaded."""
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
        told = f"{PROTOCOL}'s own transfer does not load, so batches travel over gRPC: {error}"
        print(told, file=sys.stderr, flush=True)
        return False
    return True
