"""Run benchmarks one after another: `python -m bench [--repeats N] [NAME …]`.

Each runs in its own process, prints a table and writes bench/out/NAME.json. At the end all figures are printed.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from bench.measure import OUT, REPEATS

TORCH = Path(__file__).parents[1] / ".venv-torch" / "bin" / "python"
"""The Python of PyTorch's environment, which is separate from TensorFlow's."""
# For each benchmark, a function that returns its arguments for a number of repeats.
BENCHMARKS = {
    "transport": lambda repeats: [f"--repeats={repeats}"],
    "pipeline": lambda repeats: [f"--repeats={repeats}"],
    "ranks": lambda repeats: [f"--repeats={repeats}"],
    "splits": lambda repeats: [f"--repeats={repeats}"],
    "passes": lambda repeats: [f"--repeats={repeats}"],
    "startup": lambda repeats: [f"--repeats={repeats}"],
    "overhead": lambda repeats: [f"--repeats={repeats}"],
    "scaling": lambda repeats: [f"--repeats={repeats}"],
    "hosts": lambda repeats: [f"--repeats={repeats}"],
    "ideal": lambda repeats: [f"--repeats={2 * repeats}"],
    "plan": lambda repeats: [f"--repeats={-(-repeats // 5)}"],
    "placement": lambda repeats: [f"--repeats={-(-repeats // 3)}"],
    "torch": lambda repeats: [f"--repeats={repeats}"],
    "torch_start": lambda repeats: [f"--repeats={repeats}"],
    "torch_ideal": lambda repeats: [f"--repeats={2 * repeats}"],
    "faults": lambda repeats: [f"--runs={14 * -(-repeats // 5)}"],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(BENCHMARKS)}; default: all")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="number of runs; results are medians over runs")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(BENCHMARKS):
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; expected any of {', '.join(BENCHMARKS)}")
    names = arguments.names or list(BENCHMARKS)
    environ = {"TF_CPP_MIN_LOG_LEVEL": "2"} | os.environ
    failed = []
    for name in names:
        print(f"bench: {name} …", flush=True)
        python = str(TORCH) if name.startswith("torch") else sys.executable
        module = "bench.torch_feed" if name == "torch" else f"bench.{name}"
        if not Path(python).exists():
            print(f"bench: {name} needs {python}; run make setup-torch", file=sys.stderr)
            failed.append(name)
            continue
        command = [python, "-m", module, *BENCHMARKS[name](arguments.repeats)]
        if subprocess.call(command, env=environ):
            failed.append(name)
    print(f"{'figure':<42}{'median':>10}")
    for name in names:
        if (OUT / f"{name}.json").exists() and name not in failed:
            for key, value in json.loads((OUT / f"{name}.json").read_text())["figures"].items():
                print(f"{key:<42}{value:>10.4g}")
    if failed:
        print(f"bench: error: {', '.join(failed)} failed", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
