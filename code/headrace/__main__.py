"""Run `headrace COMMAND` or `python -m headrace COMMAND`: import the command's module and call its function."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from headrace.errors import InputError
from headrace.terminal.parser import exit_status

COMMANDS = {
    "begin": {
        "new": ("headrace.cli.new", "write a training script into a folder, for you to edit"),
        "setup": ("headrace.cli.setup", "build Horovod for this Python, once; PyTorch does not need it"),
    },
    "train": {
        "run": ("headrace.cli.start:run", "train for free, on hosts simulated on this machine"),
        "submit": ("headrace.cli.start:submit", "train on SageMaker or Slurm; shows the price first"),
        "preflight": ("headrace.cli.start:preflight", "test only MPI: links between hosts, and collectives"),
    },
    "look at runs": {
        "runs": ("headrace.cli.finished_runs:list_runs", "list the runs in runs/"),
        "report": ("headrace.cli.finished_runs:report", "report on finished runs: a table, plots, one HTML page"),
        "compare": ("headrace.report.compare", "compare finished runs side by side"),
        "plan": ("headrace.cli.finished_runs:plan_from", "from one run, advise what to rent and where to make batches"),
        "dashboard": ("headrace.backends.sagemaker.dashboard", "print or create a job's CloudWatch dashboard"),
    },
    "look for mistakes": {
        "lint": ("headrace.lint.command", "name what costs most in a script's tf.data pipeline"),
        "image": ("headrace.tensorflow.check_image", "check that TensorFlow, Keras, Horovod and MPI work together"),
    },
}
"""Commands by purpose, each with module and description. A command calls `main`, or the function after the colon."""
DEPRECATED = {"start": "headrace.cli.start:start"}
PLACES = DEPRECATED | {name: place for group in COMMANDS.values() for name, (place, _) in group.items()}
"""Each command's module and function. The module is imported only when the command is called."""
USAGE = """usage: headrace COMMAND [ARGUMENT ...]

Train on accelerators that need not wait for data: CPU hosts make the batches, GPU hosts train, in one job.
"""
FIRST_STEPS = """
first steps:
  headrace new mine && cd mine                                 train_dnn.py is yours to edit
  headrace run --hyperparameter model=small_cnn                a job here, with two simulated data hosts
  headrace submit --role ROLE --dry_run                        the request that SageMaker would get

`headrace COMMAND --help` lists flags. In a checkout of headrace, start_job.py runs the checkout's code."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code: 0, 1 if it failed, 2 if the arguments are wrong."""
    return exit_status("headrace", lambda: _run(sys.argv[1:] if argv is None else argv))


def _run(argv: Sequence[str]) -> int:
    command, *rest = argv or [""]
    if command in ("", "-h", "--help"):
        print(_usage())
        return 0
    if command not in PLACES:
        known = ", ".join(name for name in PLACES if name not in DEPRECATED)
        raise InputError(f"no command {command!r}; there are {known}")
    module, _, function = PLACES[command].partition(":")
    return int(getattr(importlib.import_module(module), function or "main")(rest))


def _usage() -> str:
    lines = [USAGE]
    for purpose, commands in COMMANDS.items():
        lines += [f"{purpose}:", *(f"  {name:<10} {what}" for name, (_, what) in commands.items())]
    return "\n".join([*lines, FIRST_STEPS])


if __name__ == "__main__":
    sys.exit(main())
