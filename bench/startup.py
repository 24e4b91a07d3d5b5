"""Measure the seconds from a command to its first training step, for whole jobs and for the training script alone.

    python -m bench.startup [--repeats 5]

The script is code/train_dnn.py with its small model and synthetic images. It runs alone as `python code/train_dnn.py`,
as a homogeneous job, and as a heterogeneous job with two data hosts. Each measurement ends with the log line
`event=first_step`.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import measure
from tests.support import ROOT, finish, start

FLAGS = ["--epochs=1", "--steps_per_epoch=5", "--hyperparameter=model=small_cnn"]
JOBS = {
    "homogeneous, 1 rank": ["--no-is_hetero", "--processes_per_host=1"],
    "heterogeneous, 1 rank": ["--processes_per_host=1"],
    "homogeneous, 2 ranks": ["--no-is_hetero"],
    "heterogeneous, 2 ranks": [],
}
BARE, FIGURE = "bare script", "heterogeneous, 2 ranks"


def main(argv=None):
    repeats = measure.arguments(__doc__, argv).repeats
    seconds, parts = {}, {}
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        for repeat in range(repeats):
            seconds.setdefault(BARE, []).append(bare(Path(name) / f"bare-{repeat}"))
            for job, flags in JOBS.items():
                took, summary = whole(Path(name), flags)
                seconds.setdefault(job, []).append(took)
                parts[job] = summary["startup_s"]
            print(f"startup: {repeat + 1} of {repeats}", flush=True)
    rows = [
        {
            "what": what,
            "first step s": measure.median(values),
            "minus bare s": measure.median([a - b for a, b in zip(values, seconds[BARE], strict=True)]),
            "launcher → trainer s": parts.get(what, {}).get("trainer_started") or "-",
            "→ workers s": parts.get(what, {}).get("workers_ready") or "-",
            "→ imported s": parts.get(what, {}).get("trainer_ready") or "-",
        }
        for what, values in seconds.items()
    ]
    figures = {"startup_overhead_s": next(row["minus bare s"] for row in rows if row["what"] == FIGURE)}
    measure.leave("startup", figures, rows, repeats=repeats)


def bare(folder):
    folder.mkdir()  # a new folder: in an old one, the script would continue from a checkpoint
    environ = os.environ | {"PYTHONPATH": str(ROOT / "code")}
    command = [sys.executable, "-u", str(ROOT / "code" / "train_dnn.py"), "--model=small_cnn", *FLAGS[:2]]
    began = time.perf_counter()
    process = subprocess.Popen(
        command, env=environ, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    for line in process.stdout:
        if "event=first_step" in line:
            took = time.perf_counter() - began
    process.communicate()
    return took


def whole(folder, flags):
    began = time.perf_counter()
    process, run = start(folder, "--isolation=namespaces", *FLAGS, *flags)
    while not any("event=first_step" in log.read_text() for log in run.glob("algo-*.log")):
        if process.poll() is not None or time.perf_counter() - began > 120:
            break
        time.sleep(0.02)
    took = time.perf_counter() - began
    done = finish(process, run)
    if done.code:
        raise SystemExit(f"bench: error: a job failed:\n{done.output[-3000:]}")
    return took, done.summary


if __name__ == "__main__":
    main()
