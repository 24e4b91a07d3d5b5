"""`python -m headrace.tensorflow.transfer.build` builds the library for the installed TensorFlow, and tries it.

It takes g++, and half a minute. What is built already is not built again. Its place is taken only once batches have
gone from one process to another through it, bit for bit.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from headrace.errors import SetupError
from headrace.settings import OneLineParser
from headrace.tensorflow.transfer import library_path, tensorflow_dir

COMPILE_LIMIT_S = 300
TRIAL_LIMIT_S = 120


def main(argv: Sequence[str]) -> int:
    """Build; 0 when it is there."""
    parser = OneLineParser(prog="build.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--once", action="store_true", help="do not try again what has failed")
    parser.add_argument("--library", type=Path, help="where to (default: where workers and ranks look for it)")
    arguments = parser.parse_args(argv)
    try:
        path = arguments.library or library_path()
        with _alone(path.parent):
            if path.is_file():
                return 0
            if arguments.once and _failure(path).is_file():
                print(f"transfer: batches travel over gRPC; why: {_failure(path)}", file=sys.stderr)
                return 1
            print("transfer: compiling (half a minute) …", flush=True)
            try:
                build(path)
            except SetupError as error:
                _failure(path).write_text(str(error))
                raise
    except (SetupError, ImportError, OSError) as error:
        print(f"transfer: {error}\ntransfer: batches will travel over gRPC, at half the rate", file=sys.stderr)
        return 1
    print("transfer: ready", flush=True)
    return 0


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One builder at a time: a host's workers and ranks ask for it all at once. Ends with the process at the latest."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _failure(path: Path) -> Path:
    return path.with_suffix(".failed")


def build(path: Path) -> None:
    """Compile to `path`, all or nothing.

    Raises:
        SetupError: no compiler, or it failed, or the library does not work with this TensorFlow.
        OSError: the folder cannot be written.
    """
    compiler = shutil.which("g++")
    if compiler is None:
        raise SetupError("g++ is not installed (Debian: apt-get install g++)")
    with tempfile.TemporaryDirectory(prefix="build-", dir=path.parent) as folder:
        library = Path(folder) / path.name
        tensorflow = tensorflow_dir()
        _run(
            [
                compiler, "-O2", "-fPIC", "-shared", "-std=c++17", "-fmax-errors=3", "-Wall", "-Wextra",
                "-D_GLIBCXX_USE_CXX11_ABI=1", "-isystem", str(tensorflow / "include"),
                str(Path(__file__).parent / "transfer.cc"), "-o", str(library), f"-L{tensorflow}",
                "-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2", "-pthread",
                "-Wl,-rpath,$ORIGIN/../tensorflow",
            ],
            COMPILE_LIMIT_S,
            "does not compile against this TensorFlow",
        )  # fmt: skip
        _run(
            [sys.executable, "-m", "headrace.tensorflow.transfer.trial", str(library)],
            TRIAL_LIMIT_S,
            "does not work with this TensorFlow",
        )
        os.replace(library, path)


def _run(command: list[str], limit_s: float, problem: str) -> None:
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3]), "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        done = subprocess.run(
            command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit_s
        )
    except subprocess.TimeoutExpired as error:
        raise SetupError(f"{problem}: no end after {limit_s:g} s") from error
    if done.returncode:
        raise SetupError(f"{problem} (exit code {done.returncode}):\n{done.stdout[-3000:]}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
