"""`python -m headrace.tensorflow.service.transfer.build` builds the library for the installed TensorFlow, and tries it.

A build needs g++ and half a minute. It is skipped if the library exists here, or in the S3 folder `HEADRACE_WHEELS`.
A new library is put in place only after a trial, in which it carries batches unchanged between two processes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from headrace.errors import SetupError
from headrace.job.artifact_cache import LIBRARY_KEY, Store, open_store
from headrace.tensorflow.service.transfer import build_environ, library_path, tensorflow_dir, tensorflow_version
from headrace.terminal.parser import OneLineParser

LOAD = "import ctypes, sys; problem = ctypes.CDLL(sys.argv[1]).headrace_transfer_problem; \
problem.restype = ctypes.c_char_p; sys.exit(problem().decode() or None)"
COMPILE_LIMIT_S = 300
TRIAL_LIMIT_S = 120


def main(argv: Sequence[str]) -> int:
    """Build the library if it is missing; return 0 if it exists afterwards, else 1."""
    parser = OneLineParser(prog="build.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--once", action="store_true", help="do not retry a build that has failed")
    parser.add_argument("--library", type=Path, help="path of the library (default: where jobs look for it)")
    arguments = parser.parse_args(argv)
    try:
        path = arguments.library or library_path()
        with _alone(path.parent):
            if path.is_file():
                return 0
            store = open_store(os.environ)
            if store and _fetch(store, path):
                return 0
            if arguments.once and _failure(path).is_file():
                raise SetupError(_failure(path).read_text(encoding="utf-8").partition("\n")[0])
            print("transfer: compiling (half a minute) …", flush=True)
            started = time.monotonic()
            build(path)
            print(f"transfer: ready after {time.monotonic() - started:.0f} s", flush=True)
            if store:
                store.keep(path, f"{LIBRARY_KEY}/{path.name}")
    except (SetupError, ImportError, OSError) as error:
        print(f"transfer: batches will travel over gRPC, at half speed: {error}", file=sys.stderr)
        return 1
    return 0


def _fetch(store: Store, path: Path) -> bool:
    """Fetch the library from the S3 folder of earlier builds. Return False if it is not there, or does not load."""
    with tempfile.TemporaryDirectory(prefix="build-", dir=path.parent) as folder:
        fetched = store.fetch_kept(LIBRARY_KEY, path.name, Path(folder))
        if fetched is None:
            return False
        # The builder has tried it, but this host may lack the C++ library of the builder's compiler.
        try:
            _run([sys.executable, "-c", LOAD, str(fetched)], TRIAL_LIMIT_S, "the library fetched from S3 does not load")
        except SetupError as error:
            print(f"transfer: {error}", file=sys.stderr)
            return False
        os.replace(fetched, path)
    return True


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold a lock on the folder, since all workers and ranks of a host may try to build at once."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _failure(path: Path) -> Path:
    return path.with_suffix(".failed")


def build(path: Path) -> None:
    """Compile and try the library, then move it to `path`. Record failures, but not timeouts, for later `--once` calls.

    Raises:
        SetupError: there is no compiler, compiling fails, or the library does not work with this TensorFlow.
        OSError: the folder cannot be written.
    """
    for left_over in path.parent.glob("build-*"):  # from a builder that was killed
        shutil.rmtree(left_over, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="build-", dir=path.parent) as folder:
        library = Path(folder) / path.name
        try:
            _run(_compiler(library), COMPILE_LIMIT_S, "the library does not compile against this TensorFlow")
            trial = [sys.executable, "-m", "headrace.tensorflow.service.transfer.trial", str(library)]
            try:
                _run(trial, TRIAL_LIMIT_S, "the library does not work with this TensorFlow")
            except _Late:  # the machine may be busy with other things
                _run(trial, TRIAL_LIMIT_S, "the library does not work with this TensorFlow")
        except _Late:
            raise
        except SetupError as error:
            _failure(path).write_text(str(error), encoding="utf-8")
            raise
        os.replace(library, path)


class _Late(SetupError):
    """Raised if a command did not end in time; another try may succeed."""


def _compiler(library: Path) -> list[str]:
    """Return the command that compiles the library. Raise `SetupError` if g++ or a supported TensorFlow is missing."""
    compiler = shutil.which("g++")
    if compiler is None:
        raise SetupError("g++ is not installed (Debian: apt-get install g++)")
    return [
        compiler,
        "-O2",
        "-shared",
        str(Path(__file__).parent / "transfer.cc"),
        "-o",
        str(library),
        *compile_flags(),
    ]


def compile_flags() -> list[str]:
    """Return the flags of g++. Raise `SetupError` if `transfer.cc` does not support the installed TensorFlow."""
    tensorflow = tensorflow_dir()
    include = tensorflow / "include"
    # Where the library finds TensorFlow at run time: beside its own folder, or else where it is installed here.
    places = ":".join(("$ORIGIN/../tensorflow", "$ORIGIN/../../tensorflow", str(tensorflow)))
    return [
        "-fPIC", "-std=c++17", "-fmax-errors=3", "-Wall", "-Wextra", "-pthread",
        f'-DHEADRACE_TENSORFLOW="{tensorflow_version()}"', "-D_GLIBCXX_USE_CXX11_ABI=1",
        "-isystem", str(include), "-isystem", str(include / "external" / "boringssl" / "src" / "include"),
        f"-L{tensorflow}", "-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2",
        "-Xlinker", "-rpath", "-Xlinker", places,
    ]  # fmt: skip


def _run(command: list[str], limit_s: float, problem: str) -> None:
    environ = build_environ() | {"TF_CPP_MIN_LOG_LEVEL": "2"}
    try:
        done = subprocess.run(
            command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit_s
        )
    except subprocess.TimeoutExpired as error:
        raise _Late(f"{problem}: not finished after {limit_s:g} s") from error
    if done.returncode:
        raise SetupError(f"{problem} (exit code {done.returncode}):\n{done.stdout[-3000:]}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
