"""A script that ends while TensorFlow reads ahead for it."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys, time
import tensorflow as tf
from headrace.tensorflow import data
from headrace.tensorflow.now_and_then import now_and_then

def look(at):
    if at:
        print("read ahead", flush=True)
        time.sleep(1)  # as long as it takes Python to end

numbers = data._on_trainer(now_and_then(tf.data.Dataset.range(1_000), look).prefetch(2))
batches = iter(numbers)
assert [int(next(batches)) for _ in range(8)] == list(range(8))
held = [batches] if sys.argv[1] == "held" else []
"""


@pytest.mark.parametrize("how", ["held", "dropped"])
def test_python_that_reads_ahead_does_not_keep_the_script_from_ending(how):
    ended = subprocess.run([sys.executable, "-c", SCRIPT, how], stdout=subprocess.PIPE, text=True, timeout=60)
    assert (ended.returncode, "read ahead" in ended.stdout) == (0, True)
