"""`headrace image --check`: whether TensorFlow, Keras, Horovod and MPI of this image or environment work together.

Each part is tried in its own process, so a crash only marks that part as bad in the table.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence

from headrace.errors import SetupError
from headrace.terminal.parser import OneLineParser

TRY_TIMEOUT_S = 120
_TENSORFLOW = """
import tensorflow as tf
assert float(tf.reduce_sum(tf.ones([2, 2]))) == 4.0, "2 x 2 ones do not add up to 4"
build = "CUDA" if tf.test.is_built_with_cuda() else "CPU"
print(f"{tf.__version__:<9} {build} build, {len(tf.config.list_physical_devices('GPU'))} GPUs")
"""
_KERAS = """
import keras, tensorflow
assert keras.__version__.startswith("3."), f"this is Keras {keras.__version__}, not 3"
assert keras.backend.backend() == "tensorflow", f"its backend is {keras.backend.backend()}, not tensorflow"
print(f"{keras.__version__:<9} backend tensorflow")
"""
_HOROVOD = """
import horovod, horovod.tensorflow as hvd, tensorflow as tf
hvd.init()
mean = float(hvd.allreduce(tf.constant(float(hvd.rank())), op=hvd.Average))
assert (hvd.size(), mean) == (2, 0.5), f"{hvd.size()} of 2 ranks found each other; the mean rank is {mean}, not 0.5"
assert hvd.nccl_built() or not tf.config.list_physical_devices("GPU"), "GPUs need a build with NCCL"
built = {"MPI": hvd.mpi_built(), "NCCL": hvd.nccl_built(), "CUDA": hvd.cuda_built()}
if hvd.rank() == 0:
    print(f"{horovod.__version__:<9} built with {', '.join(name for name in built if built[name])}, 2 ranks agree")
"""
_MPI = """
import mpi4py
from mpi4py import MPI
library = MPI.Get_library_version().split(",")[0].split("\\x00")[0]
assert MPI.COMM_WORLD.size == 2, f"mpi4py loads {library}, but mpirun belongs to a different MPI"
if MPI.COMM_WORLD.rank == 0:
    print(f"{mpi4py.__version__:<9} loads {library}")
"""
_HEADRACE = """
import os, grpc, psutil, headrace
os.environ.setdefault("HEADRACE_JOB_SECRET", "of this check")  # without one the library does not load
from headrace.tensorflow import callbacks, data, horovod_keras
from headrace.tensorflow.service import transfer
built = transfer.library_path().is_file() and transfer.load()
batches = "its own protocol" if built else "gRPC (python -m headrace.tensorflow.service.transfer.build is faster)"
print(f"{headrace.__version__:<9} grpc {grpc.__version__}, psutil {psutil.__version__}, batches over {batches}")
"""
CHECKS = {"tensorflow": _TENSORFLOW, "keras": _KERAS, "horovod": _HOROVOD, "mpi": _MPI, "headrace": _HEADRACE}
ON_TWO_RANKS = ("horovod", "mpi")
"""The checks that run under mpirun, as in a job."""


def main(argv: Sequence[str]) -> int:
    """Print the table of checks; return 0 if all succeed. Raises `SetupError` if one fails."""
    parser = OneLineParser(prog="headrace image", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", required=True, help="try each part, and print a table")
    parser.parse_args(argv)
    bad = []
    for name, program in CHECKS.items():
        works, text = try_part(program, name in ON_TWO_RANKS)
        print(f"{'ok ' if works else 'BAD'}  {name:<11} {text}")
        bad += [] if works else [name]
    if bad:
        raise SetupError(f'{sys.executable} cannot train: {", ".join(bad)} failed; see docs/submit.md, "The image"')
    return 0


def try_part(program: str, on_two_ranks: bool) -> tuple[bool, str]:
    """Run a program that tries one part. Return whether the part works, and a line with its version or its error."""
    command = [sys.executable, "-c", program]
    if on_two_ranks:
        mpirun = shutil.which("mpirun", path=sysconfig.get_path("scripts")) or shutil.which("mpirun")
        if not mpirun:
            return False, "mpirun is not installed"
        command = [mpirun, "--allow-run-as-root", "--oversubscribe", "-np", "2", *command]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=TRY_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return False, f"did not answer within {TRY_TIMEOUT_S} s"
    if tried.returncode == 0:
        return True, [line for line in tried.stdout.splitlines() if line.strip()][-1]
    lines = [line for line in tried.stderr.splitlines() if line.strip(" -")]
    errors = [line for line in lines if "Error" in line]
    return False, (errors or lines or [f"exited with {tried.returncode}"])[-1][:160]
