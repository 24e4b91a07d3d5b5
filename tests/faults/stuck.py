"""Ranks whose end hangs, as Open MPI's has been seen to: after their work, or once rank 1 has failed."""

import argparse
import ctypes
import time

import headrace.tensorflow.horovod_keras as hvd
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--at", choices=["end", "abort"])
args, _ = parser.parse_known_args()
hvd.init()
hvd.allreduce(tf.constant(1.0))
if args.at == "end":
    ctypes.CDLL(None).on_exit(ctypes.CDLL(None).pause, None)
else:
    if hvd.rank() == 1:
        from mpi4py import MPI  # which Horovod has begun

        MPI.Is_initialized = lambda: time.sleep(1000)  # asked just before MPI ends all ranks
        raise ValueError("no good_reason at all")
    hvd.allreduce(tf.constant(1.0), name="never")
