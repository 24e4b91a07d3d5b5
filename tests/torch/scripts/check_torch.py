"""Run train_torch.py once every feed server is up, and print a digest of the weights on each rank."""

import argparse
import contextlib
import hashlib
import os
import runpy
import socket
import time
from pathlib import Path

import headrace.torch


def wait_for_feeds(seconds=60):
    """Wait for all feed servers. In tests all hosts share the processors, so a server may come up late."""
    until = time.monotonic() + seconds
    for feed in filter(None, os.environ.get("HEADRACE_FEEDS", "").split(",")):
        host, port = feed.rsplit(":", 1)
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
                break
            time.sleep(0.1)


parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--held", default="", help="file; while it exists, only the first step is made")
args, _ = parser.parse_known_args()


class Held(headrace.torch.Training):
    def steps(self, most=None):
        for number, batch in enumerate(super().steps(most)):
            while number and os.path.exists(args.held):
                time.sleep(0.01)
            yield batch


headrace.torch.Training = Held
wait_for_feeds()
model = runpy.run_path(str(Path(__file__).with_name("train_torch.py")), run_name="__main__")["model"]
digest = hashlib.sha256(b"".join(each.numpy().tobytes() for each in model.state_dict().values()))
print(f"weights of rank {headrace.torch.rank()}: {digest.hexdigest()}", flush=True)
