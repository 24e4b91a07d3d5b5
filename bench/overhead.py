"""Compare a script with headrace to the same script with plain Keras and plain Horovod, on the same processors.

    python -m bench.overhead [--repeats 5] [--long_run 100000]
    python -m bench.overhead --model resnet50 --steps 6 --long_run 0        (the first step of a large model)

Two ranks, which share two processors, train a small convolutional network on made-up images in memory. The plain script
has only what training on several ranks needs: an optimizer that averages gradients, a broadcast, and `shard`. The
other one has `data.distribute` in local mode, `hvd.DistributedOptimizer`, and headrace's callbacks, with the
measurement of the ideal step. At the end, `--long_run` tiny steps with headrace show whether steps get slower or memory
grows. The step time in the last tenth of this run is compared with that in the first tenth, and memory at the end with
memory after the first tenth. A machine's speed may double within minutes. To correct for this, the script also times a
fixed piece of work during the run.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from headrace.host.mpi.mpirun import find_program

from bench import measure
from tests.support import ROOT

SCRIPT = Path(__file__).parent / "scripts" / "overhead_step.py"
WAYS = ("plain", "headrace")
GROUPS = (4,)
"""Values of `num_groups` to measure besides the default, which is one group of gradients."""


def main(argv=None):
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--long_run", type=int, default=100_000, help="number of tiny steps at the end; 0: none")
    parser.add_argument("--model", choices=["small_cnn", "resnet50"], default="small_cnn")
    parser.add_argument("--steps", type=int, default=300)
    own, rest = parser.parse_known_args(argv)
    repeats = measure.arguments(__doc__, rest).repeats
    cases = {"plain": ["plain"], "headrace": ["headrace"]}
    cases |= {f"headrace, {groups} groups": ["headrace", f"--num_groups={groups}"] for groups in GROUPS}
    runs = {name: [] for name in cases}
    for repeat in range(repeats):
        for name, argv_of_ranks in cases.items():
            runs[name].append(train(*argv_of_ranks, f"--model={own.model}", f"--steps={own.steps}"))
        print(f"overhead: {repeat + 1} of {repeats}", flush=True)
    rows = [
        {
            "what": name,
            "step ms": measure.median([run["step_ms"] for run in found]),
            "÷ plain": ratio(runs["plain"], found, "step_ms"),
            "peak MB": measure.median([run["peak_bytes"] for run in found]) / 1e6,
            "first step s": measure.median([run["first_step_s"] for run in found]),
        }
        for name, found in runs.items()
    ]
    ours = runs["headrace"]
    figures = {
        "overhead_vs_plain": 1 / ratio(runs["plain"], ours, "step_ms"),
        "overhead_memory": ratio(runs["plain"], ours, "peak_bytes"),
        "overhead_first_step_s": measure.median(
            [b["first_step_s"] - a["first_step_s"] for a, b in zip(runs["plain"], ours, strict=True)]
        ),
        "overhead_first_step": ratio(runs["plain"], ours, "first_step_s"),
        "overhead_groups": 1 / ratio(ours, runs[f"headrace, {GROUPS[0]} groups"], "step_ms"),
    }
    if own.long_run:
        last = train("headrace", "--model=tiny", f"--steps={own.long_run}")
        figures |= {f"long_run_{name}": last[f"{name}"] for name in ("last_vs_first", "memory_last_vs_first")}
    name = "overhead" if own.model == "small_cnn" else f"overhead_{own.model}"
    measure.leave(name, figures, rows, repeats=repeats, **vars(own))


def ratio(plain, ours, figure):
    """For each repeat, divide the figure in `ours` by the figure in `plain`. Return the median of these ratios."""
    return measure.median([b[figure] / a[figure] for a, b in zip(plain, ours, strict=True)])


def train(*argv):
    """Train with two ranks on two processors. For each figure, return the larger of the two ranks' values."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder, measure.pinned(*measure.two_processors()):
        command = [find_program("mpirun"), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "2"]
        command += ["--mca", "orte_tmpdir_base", folder, sys.executable, str(SCRIPT), *argv]
        environ = os.environ | {
            "PYTHONPATH": f"{ROOT / 'code'}",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "BENCH_BEGAN": str(time.time()),
            "HEADRACE_OUTPUT_DIR": folder,
        }
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, cwd=folder)
    found = [json.loads(each) for each in re.findall(r"measured (\{.*?\})", done.stdout)]  # ranks may print to one line
    if len(found) != 2:
        raise SystemExit(f"bench: error: {' '.join(argv)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return {name: max(each[name] for each in found) for name in found[0]}


if __name__ == "__main__":
    main()
