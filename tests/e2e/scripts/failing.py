"""Ends badly on rank 1, in the way asked for, while rank 0 waits in an allreduce; `stuck` never ends at all."""

import argparse
import ctypes
import os
import signal
import sys
import time

import headrace.tensorflow.horovod_keras as hvd
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--how", choices=["raise", "exit", "end", "kill", "stuck", "stuck_abort"])
args, _ = parser.parse_known_args()
hvd.init()
hvd.allreduce(tf.constant(1.0))
if args.how == "stuck":  # as Open MPI's end has been seen to
    ctypes.CDLL(None).on_exit(ctypes.CDLL(None).pause, None)
    sys.exit()
if hvd.rank() == 1:
    if args.how == "stuck_abort":
        from mpi4py import MPI

        MPI.Is_initialized = lambda: time.sleep(1000)  # asked just before MPI ends all ranks
        raise ValueError("no good_reason at all")
    if args.how == "raise":
        raise ValueError("no good_reason at all")
    if args.how == "exit":
        sys.exit(3)
    if args.how == "end":
        sys.exit()
    os.kill(os.getpid(), signal.SIGKILL)
hvd.allreduce(tf.constant(1.0), name="never")
