"""Check on two ranks that training continues where it stopped, even if only its checkpoints are left.
test_horovod.py runs this script."""

import shutil
import sys
from pathlib import Path

import headrace.tensorflow.horovod_keras as hvd
import keras
import numpy as np
import tensorflow as tf
from headrace.errors import InputError
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
    # A crash while a checkpoint is written leaves such files. They are never read.
    shutil.copytree(folder / "epoch-0003", folder / ".partial-epoch-0004")
    (folder / "epoch-0005").mkdir()

# In a long epoch, a checkpoint is written each time that one is due.
often = folder.parent / "often"
make_model().fit(
    x,
    y,
    epochs=1,
    batch_size=8,
    verbose=0,
    callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), Checkpoint(often, kept=9, every_s=1e-9)],
)
if hvd.rank() == 0:
    steps = [f"epoch-0000-step-{step:06d}" for step in (1, 2, 3)]
    assert sorted(path.name for path in often.iterdir()) == [*steps, "epoch-0001"], list(often.iterdir())

resumed = make_model()
assert Checkpoint(folder).restore(resumed) == 3
for old, new in zip(
    model.weights + model.optimizer.variables, resumed.weights + resumed.optimizer.variables, strict=True
):
    np.testing.assert_array_equal(np.array(old), np.array(new))


# A network with two optimizers, as a GAN has: both continue where they were, on all ranks.
class Two(keras.Model):
    def __init__(self):
        super().__init__()
        self.halves = [keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]) for _ in range(2)]

    def compile(self):
        super().compile()
        self.optimizers = {str(n): hvd.DistributedOptimizer(keras.optimizers.Adam()) for n in range(2)}
        for optimizer, half in zip(self.optimizers.values(), self.halves, strict=True):
            optimizer.build(half.trainable_variables)

    def train_step(self, both):
        for optimizer, half in zip(self.optimizers.values(), self.halves, strict=True):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((half(both[0]) - both[1]) ** 2)
            optimizer.apply(tape.gradient(loss, half.trainable_variables), half.trainable_variables)
        return {"loss": loss}


for first in (0, 2):
    keras.utils.set_random_seed(hvd.rank())
    two, checkpoint = Two(), Checkpoint(folder.parent / "two")
    two.compile()
    assert checkpoint.restore(two) == first
    two.fit(
        x,
        y,
        initial_epoch=first,
        epochs=first + 2,
        verbose=0,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), checkpoint],
    )
    state = [np.array(v) for each in (two.halves[1], *two.optimizers.values()) for v in each.variables]
    flat = np.concatenate([each.ravel().astype("float64") for each in state])
    ranks = np.asarray(hvd.allgather(tf.constant(flat[None])))
    np.testing.assert_array_equal(ranks[0], ranks[1])
    assert [int(each.iterations) for each in two.optimizers.values()] == [first + 2] * 2

# The error says that the checkpoint is of another model, and what to do.
if hvd.rank() == 0:
    for layers in ([keras.layers.Dense(3)], [keras.layers.Dense(2), keras.layers.Dense(2)]):
        other = keras.Sequential([keras.Input((4,)), *layers])
        other.compile(hvd.DistributedOptimizer(keras.optimizers.Adam()), "mse", jit_compile=False)
        try:
            Checkpoint(often).restore(other)
            raise AssertionError("another model's checkpoint was loaded")
        except InputError as error:
            assert "is of another model" in str(error) and "--checkpoint_s3_uri" in str(error)
print("all promises kept")
