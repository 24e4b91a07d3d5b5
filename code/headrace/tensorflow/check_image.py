"""`headrace image --check`: whether TensorFlow, Keras, Horovod and MPI of this image or environment work together.

Each part is tried in its own process, so a crash only marks that part as bad in the table.
"""

from __future__ import annotations

import json
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
found, wants_gpu = len(tf.config.list_physical_devices("GPU")), tf.test.is_built_with_cuda()
ok = float(tf.reduce_sum(tf.ones([2, 2]))) == 4.0
tell(ok, tf.__version__, f"{'CUDA' if wants_gpu else 'CPU'} build, {found} GPUs")
"""
_KERAS = """
import keras, tensorflow as tf
ok = keras.backend.backend() == "tensorflow" and keras.__version__.startswith("3.")
tell(ok, keras.__version__, f"backend {keras.backend.backend()}")
"""
_HOROVOD = """
import horovod, horovod.tensorflow as hvd, tensorflow as tf
hvd.init()
same = float(hvd.allreduce(tf.constant(float(hvd.rank())), op=hvd.Average)) == (hvd.size() - 1) / 2
gpus = len(tf.config.list_physical_devices("GPU"))
built = {"MPI": hvd.mpi_built(), "NCCL": hvd.nccl_built(), "CUDA": hvd.cuda_built()}
parts = [name for name, there in built.items() if there]
tell(same and hvd.mpi_built() and (not gpus or hvd.nccl_built()), horovod.__version__,
     f"built with {', '.join(parts)}, {hvd.size()} ranks agree"
     + ("; GPUs need a build with NCCL" if gpus and not hvd.nccl_built() else ""))
"""
_MPI = """
import mpi4py, re, shutil, subprocess
from mpi4py import MPI
library = MPI.Get_library_version().split(",")[0].split("\\x00")[0]
said = subprocess.run([MPIRUN, "--version"], capture_output=True, text=True).stdout.splitlines()[0]
loaded, command = (re.search(r"(\\d+\\.\\d+\\.\\d+)", text) for text in (library, said))
ok = bool(loaded and command and loaded[1] == command[1])
tell(ok, mpi4py.__version__, f"loads {library}" + ("" if ok else f", but mpirun is of {said}"))
"""
_HEADRACE = """
import grpc, psutil, headrace
from headrace.tensorflow import callbacks, data, horovod_keras
from headrace.tensorflow.service import transfer
built = transfer.library_path().is_file() and transfer.load()
batches = "its own protocol" if built else "gRPC (python -m headrace.tensorflow.service.transfer.build is faster)"
tell(True, headrace.__version__, f"grpc {grpc.__version__}, psutil {psutil.__version__}, batches over {batches}")
"""
CHECKS = {"tensorflow": _TENSORFLOW, "keras": _KERAS, "horovod": _HOROVOD, "mpi": _MPI, "headrace": _HEADRACE}
RANKS = {"horovod": 2, "mpi": 2}
"""Number of ranks for each check that needs MPI. Such a check runs under mpirun, as in a job."""
_TELL = """
import json, os
MPIRUN = {mpirun!r}
def tell(*found):
    if os.environ.get("OMPI_COMM_WORLD_RANK", "0") == "0":
        print("\\n" + json.dumps(found))
"""


def main(argv: Sequence[str]) -> int:
    """Print the table of checks; return 0 if all succeed. Raises `SetupError` if one fails."""
    parser = OneLineParser(prog="headrace image", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", required=True, help="try each part, and print a table")
    parser.parse_args(argv)
    rows = [(name, *try_part(program, RANKS.get(name, 0))) for name, program in CHECKS.items()]
    for name, ok, version, note in rows:
        print(f"{'ok ' if ok else 'BAD'}  {name:<11} {version:<9} {note}")
    bad = [name for name, ok, _, _ in rows if not ok]
    if bad:
        raise SetupError(f'{sys.executable} cannot train: {", ".join(bad)} failed; see docs/submit.md, "The image"')
    return 0


def try_part(program: str, ranks: int = 0) -> tuple[bool, str, str]:
    """Return whether a part works, its version, and a note. mpirun starts `ranks` ranks; 0: no mpirun."""
    mpirun = shutil.which("mpirun", path=sysconfig.get_path("scripts")) or shutil.which("mpirun")
    if ranks and not mpirun:
        return False, "-", "mpirun is not installed"
    command = [sys.executable, "-c", _TELL.format(mpirun=mpirun) + program]
    if ranks:
        command = [str(mpirun), "--allow-run-as-root", "--oversubscribe", "-np", str(ranks), *command]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=TRY_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return False, "?", f"did not answer within {TRY_TIMEOUT_S} s"
    for line in reversed(tried.stdout.splitlines()):
        if line.startswith("["):
            ok, version, note = json.loads(line)
            return bool(ok) and tried.returncode == 0, version, note
    words = [line for line in tried.stderr.splitlines() if line.strip(" -")]
    errors = [line for line in words if "Error" in line]
    return False, "-", (errors or words or [f"exited with {tried.returncode}"])[-1][:160]
