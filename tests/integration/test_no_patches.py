"""Importing headrace changes nothing in TensorFlow, Keras or Horovod."""

import json
import subprocess
import sys

LOOK = """
import json, sys
import horovod.tensorflow, keras, tensorflow as tf
from keras.src.callbacks.callback_list import CallbackList
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.trainers.epoch_iterator import EpochIterator
from tensorflow.python.data.ops.dataset_ops import DatasetV2
from tensorflow.python.data.ops.iterator_ops import OwnedIterator

CLASSES = [CallbackList, BaseOptimizer, LossScaleOptimizer, TensorFlowTrainer, EpochIterator, keras.Model, DatasetV2,
           tf.data.Dataset, tf.data.DatasetSpec, OwnedIterator, tf.Variable, horovod.tensorflow]

def attributes():
    return {(each.__name__, name): value for each in CLASSES for name, value in vars(each).items()}

before = attributes()
__import__(sys.argv[1])
after = attributes()
changed = {key for key in {*before, *after} if before.get(key) is not after.get(key) and key[1] != "_abc_impl"}
print("changed", json.dumps(sorted(changed)))
"""


def changed_by(module):
    run = [sys.executable, "-c", LOOK, module]
    lines = subprocess.run(run, stdout=subprocess.PIPE, text=True, timeout=120, check=True).stdout.splitlines()
    return json.loads(next(line for line in lines if line.startswith("changed ")).removeprefix("changed "))


def test_ends_of_epochs_are_agreed_on_without_a_patch():
    assert changed_by("headrace.tensorflow.ranks.epoch_end") == []
