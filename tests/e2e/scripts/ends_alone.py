"""End rank 1 without an error, while rank 0 waits for it in an allreduce."""

import sys

import headrace.tensorflow.horovod_keras as hvd
import tensorflow as tf

hvd.init()
hvd.allreduce(tf.constant(1.0))
if hvd.rank() == 1:
    sys.exit()
hvd.allreduce(tf.constant(1.0), name="never")
