"""Count each rank's elements by the host that made them. A host's name comes from that host's resourceconfig.json."""

import argparse
import collections
import json
import os
import time
from pathlib import Path

import headrace.tensorflow.horovod_keras as hvd
import tensorflow as tf
from headrace.tensorflow import data

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--hosts", type=int, help="number of hosts from which a rank awaits elements")
args, _ = parser.parse_known_args()
ELEMENTS, OF_EACH, LIMIT_S = 3000, 10, 60
CONFIG = "/opt/ml/input/config/resourceconfig.json"

hvd.init()


def tag(number):
    maker = tf.strings.regex_replace(tf.io.read_file(CONFIG), r'(?s).*"current_host": "([^"]*)".*', r"\1")
    return number, maker


elements = data.distribute(tf.data.Dataset.range(1_000_000).map(tag).batch(4))
makers = collections.Counter()
deadline = time.monotonic() + LIMIT_S
for number, (_, names) in enumerate(elements.unbatch()):
    makers[names.numpy().decode()] += 1
    from_all = len(makers) >= args.hosts and min(makers.values()) >= OF_EACH
    if number >= ELEMENTS and (from_all or time.monotonic() > deadline):
        break
    if number % 100 == 0:
        time.sleep(0.05)  # all hosts share the processors here, and a worker gets only the CPU time that ranks leave
output = Path(os.environ["SM_OUTPUT_DATA_DIR"])
(output / f"makers-{hvd.rank()}.json").write_text(json.dumps(makers))
hvd.allreduce(tf.constant(1.0))  # neither rank ends before both have read their elements
