"""`headrace setup`: build what pip cannot install, once for this Python: Horovod and the transfer library."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence

from headrace.cli.start import check_installation
from headrace.errors import SetupError
from headrace.frameworks import TENSORFLOW
from headrace.job.bundled import recipe_folder
from headrace.terminal.parser import OneLineParser


def main(argv: Sequence[str]) -> int:
    """Build Horovod and the transfer library; return 0. Raise `SetupError` if Horovod cannot be built."""
    OneLineParser(prog="headrace setup", description=(__doc__ or "").partition(": ")[2]).parse_args(argv)
    check_installation(("tensorflow", "mpi4py"))
    for program in ("gcc", "g++", "make"):
        if not shutil.which(program):
            raise SetupError(
                f"{program} is not installed; it is needed to build Horovod (Debian: apt-get install gcc g++ make)"
            )
    if subprocess.call([sys.executable, str(recipe_folder(TENSORFLOW.recipe) / "build.py")]):
        raise SetupError("Horovod was not built; the reason is above")
    # Ignore a failure, whose reason the build prints: without the transfer library, jobs are only slower.
    subprocess.call([sys.executable, "-m", "headrace.tensorflow.service.transfer.build"])
    return 0
