"""Ends badly on rank 1, in the way asked for, while rank 0 waits in an allreduce."""

import argparse
import os
import signal
import sys

import headrace.tensorflow.horovod_keras as hvd
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--how", choices=["raise", "exit", "end", "kill"])
parser.add_argument("--deaf", type=int, default=0, help="whether rank 0 ends by SIGKILL only, and so late")
args, _ = parser.parse_known_args()
hvd.init()
hvd.allreduce(tf.constant(1.0))
if hvd.rank() == 1:
    if args.how == "raise":
        raise ValueError("no good_reason at all")
    if args.how == "exit":
        sys.exit(3)
    if args.how == "end":
        sys.exit()
    os.kill(os.getpid(), signal.SIGKILL)
if args.deaf:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
hvd.allreduce(tf.constant(1.0), name="never")
