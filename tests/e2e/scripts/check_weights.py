"""Run train_dnn.py unchanged, then check on every rank that all ranks hold the same weights."""

import headrace.tensorflow.horovod_keras as hvd
import numpy as np
import tensorflow as tf
import train_dnn

models = []
make_model = train_dnn.make_model
train_dnn.make_model = lambda *args: models.append(make_model(*args)) or models[-1]
train_dnn.main()
(model,) = models
flat = np.concatenate([np.ravel(variable.numpy()) for variable in model.weights])
all_ranks = hvd.allgather(tf.constant(flat[None])).numpy()
assert len(all_ranks) == hvd.size()
assert (all_ranks == all_ranks[0]).all()
print(f"rank {hvd.rank()}: weights identical on {hvd.size()} ranks", flush=True)
