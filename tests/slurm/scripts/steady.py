"""Read from every toy server once, then train. Begin where an earlier run stopped. End after `--steps` steps in all."""

import argparse
import os
import pathlib
import time

import read_toys  # noqa: F401  (at import, one rank after another reads from all toy servers)
from mpi4py import MPI

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1)
args = parser.parse_args()
world = MPI.COMM_WORLD
stop = pathlib.Path(os.environ["HEADRACE_SIGNAL_DIR"]) / "stop"
kept = pathlib.Path(os.environ["HEADRACE_CHECKPOINT_DIR"]) / "step"


def say(event):
    if world.rank == 0:
        print(f"headrace event={event}", flush=True)


foreign = sorted(name for name in os.environ if name.startswith(("SLURM", "PMI_")))
print("rank", world.rank, "of", world.size, "on", os.uname().nodename, "sees of Slurm", foreign, flush=True)
first = int(kept.read_text()) if kept.exists() else 0
say("checkpoints_on_request")
say(f"first_step step={first + 1}")
for step in range(first + 1, args.steps + 1):
    world.Barrier()
    time.sleep(0.05)
    say(f"step step={step} step_ms=50")
    if world.bcast(stop.exists() if world.rank == 0 else None):
        if world.rank == 0:
            kept.write_text(str(step))
        say("checkpoint epoch=1")
        break
