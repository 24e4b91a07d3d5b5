"""Run by test_horovod.py: train, lose everything but the checkpoints, and go on where it stopped."""

import shutil
import sys
from pathlib import Path

import headrace.tensorflow.horovod_keras as hvd
import keras
import numpy as np
from headrace.tensorflow.callbacks import Checkpoint

hvd.init()
folder = Path(sys.argv[1])
x, y = np.random.default_rng(0).random((32, 4), "float32"), np.zeros((32, 2))


def make_model():
    keras.utils.set_random_seed(hvd.rank())
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam()), "mse", jit_compile=False)
    return model


model = make_model()
checkpoint = Checkpoint(folder, kept=2)
assert checkpoint.restore(model) == 0
model.fit(x, y, epochs=3, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), checkpoint])

if hvd.rank() == 0:
    assert sorted(path.name for path in folder.iterdir()) == ["epoch-0002", "epoch-0003"]
    # What a crash in the middle of writing leaves: never read.
    shutil.copytree(folder / "epoch-0003", folder / ".partial-epoch-0004")
    (folder / "epoch-0005").mkdir()

# In a long epoch, each time that one is due.
often = folder.parent / "often"
make_model().fit(x, y, epochs=1, batch_size=8, verbose=0, callbacks=[
    hvd.callbacks.BroadcastGlobalVariablesCallback(0), Checkpoint(often, kept=9, every_s=1e-9)
])  # fmt: skip
if hvd.rank() == 0:
    steps = [f"epoch-0000-step-{step:06d}" for step in (1, 2, 3)]
    assert sorted(path.name for path in often.iterdir()) == [*steps, "epoch-0001"], list(often.iterdir())

resumed = make_model()
assert Checkpoint(folder).restore(resumed) == 3
hvd.broadcast_global_variables(resumed)
for old, new in zip(
    model.weights + model.optimizer.variables, resumed.weights + resumed.optimizer.variables, strict=True
):
    np.testing.assert_array_equal(np.array(old), np.array(new))
print("all promises kept")
