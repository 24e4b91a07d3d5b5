"""Make rank 1 fail in the way that `--how` names, while rank 0 waits for it. The script needs only MPI."""

import argparse
import os
import signal
import sys

from mpi4py import MPI

parser = argparse.ArgumentParser()
parser.add_argument("--how", choices=["raise", "exit", "kill"])
parser.add_argument("--deaf", type=int, default=0, help="1: rank 0 ignores SIGTERM, so only SIGKILL ends it")
args, _ = parser.parse_known_args()
MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 1:
    if args.how == "raise":
        raise ValueError("no good_reason at all")
    if args.how == "exit":
        sys.exit(3)
    os.kill(os.getpid(), signal.SIGKILL)
if args.deaf:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
MPI.COMM_WORLD.Barrier()
