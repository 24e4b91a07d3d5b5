"""train_dnn.py as it is, then proof on every rank that all ranks hold the same weights."""

import runpy
from pathlib import Path

import headrace.tensorflow.horovod_keras as hvd
import numpy as np
import tensorflow as tf

model = runpy.run_path(str(Path(__file__).with_name("train_dnn.py")), run_name="__main__")["model"]
flat = np.concatenate([np.ravel(variable.numpy()) for variable in model.weights])
all_ranks = hvd.allgather(tf.constant(flat[None])).numpy()
assert len(all_ranks) == hvd.size()
assert (all_ranks == all_ranks[0]).all()
print(f"rank {hvd.rank()}: weights identical on {hvd.size()} ranks", flush=True)
