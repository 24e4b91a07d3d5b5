"""Hang while MPI ends, as Open MPI sometimes does. `--at end`: all ranks hang. `--at abort`: rank 1 fails and hangs."""

import argparse
import ctypes
import time

from mpi4py import MPI

parser = argparse.ArgumentParser()
parser.add_argument("--at", choices=["end", "abort"])
args, _ = parser.parse_known_args()
MPI.COMM_WORLD.Barrier()
if args.at == "end":
    ctypes.CDLL(None).on_exit(ctypes.CDLL(None).pause, None)
else:
    if MPI.COMM_WORLD.rank == 1:
        MPI.Is_initialized = lambda: time.sleep(1000)  # called just before MPI ends all ranks
        raise ValueError("no good_reason at all")
    MPI.COMM_WORLD.Barrier()
