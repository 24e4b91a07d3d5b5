"""Train steadily for about `--epochs` × 2 s. A step gets a token from a worker, if any, and waits for all ranks."""

import argparse
import os
import socket
import time

from headrace.events import say
from headrace.rank.context import TrainerContext
from headrace.training.signal_files import SignalFiles
from mpi4py import MPI

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--epochs", type=int, default=8)
args, _ = parser.parse_known_args()
STEPS, PAUSE_S = 40, 0.05
COMM = MPI.COMM_WORLD
AGAIN = {}
"""For each worker that did not answer, the monotonic time at which to ask again."""


def token(address):
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1) as connection:
            connection.settimeout(1)
            return connection.recv(1) == b"1"
    except OSError:
        return False


def wait_for_a_token(first):
    """Ask the workers in turn for a token. For five seconds, skip a worker that did not answer."""
    workers = os.environ.get("WORKERS", "").split(",")
    while any(workers):
        for place in range(len(workers)):
            worker = workers[(first + place) % len(workers)]
            if AGAIN.get(worker, 0.0) > time.monotonic():
                continue
            if token(worker):
                return
            AGAIN[worker] = time.monotonic() + 5
        time.sleep(0.1)


def wait_for_the_others():
    """Wait for all ranks in short sleeps. MPI's own wait would occupy a processor, which other tests need."""
    arrived = COMM.Ibarrier()
    while not arrived.Test():
        time.sleep(0.002)


signals = SignalFiles(TrainerContext.from_environ(os.environ).signal_dir, lambda: COMM.rank)
for step in range(1, args.epochs * STEPS + 1):
    began = time.monotonic()
    wait_for_a_token(step)
    wait_for_the_others()
    time.sleep(PAUSE_S)
    signals.progress()
    if COMM.rank == 0 and step % 5 == 0:
        took_s = time.monotonic() - began
        say("step", step=step, step_ms=1000 * took_s, samples_per_s=1 / took_s, input_bound=0.0)
