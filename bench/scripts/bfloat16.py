"""Run train_dnn.py with Keras's mixed precision in bfloat16."""

import runpy
from pathlib import Path

import keras

keras.mixed_precision.set_global_policy("mixed_bfloat16")
runpy.run_path(str(Path(__file__).with_name("train_dnn.py")), run_name="__main__")
