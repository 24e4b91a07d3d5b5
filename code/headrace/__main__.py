"""`headrace COMMAND`, or `python -m headrace COMMAND`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from headrace.errors import HeadraceError, InputError
from headrace.terminal.standard_streams import print_every_character

# Command: the module whose main(argv), or named function, it is, and what it does. Imported only when called.
COMMANDS = {
    "setup": ("headrace.cli.setup", "build Horovod and the transfer library for this Python, once"),
    "new": ("headrace.cli.new", "begin a project: a training script to edit"),
    "start": ("headrace.cli.start:start_here", "run the current folder's training script, on SageMaker or here"),
    "submit": ("headrace.cli.start:submit_elsewhere", "run the current folder's training script on Slurm"),
    "compare": ("headrace.report.compare", "put finished runs beside each other"),
    "report": ("headrace.cli.finished_runs:report", "what runs did: a table, plots, one HTML page"),
    "plan": (
        "headrace.cli.finished_runs:plan_from",
        "from one run: how many data hosts to rent, who should make batches",
    ),
    "dashboard": ("headrace.backends.sagemaker.dashboard", "print or create the CloudWatch dashboard of a job"),
    "image": ("headrace.tensorflow.check_image", "check that TensorFlow, Keras, Horovod and MPI here agree"),
    "lint": ("headrace.lint.command", "name what costs most in a script's tf.data pipeline"),
    "preflight": ("headrace.cli.preflight", "try MPI on the ranks of a job: who is where, every link, collectives"),
}
USAGE = "usage: headrace COMMAND [ARGUMENT ...]\n\n" + "\n".join(
    f"  {name:<10} {what}" for name, (_, what) in COMMANDS.items()
)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, 1 it failed, 2 the arguments are wrong."""
    print_every_character()
    command, *rest = (sys.argv[1:] if argv is None else list(argv)) or [""]
    try:
        if command in ("", "-h", "--help"):
            print(f"{USAGE}\n\nIn a checkout of headrace, start_job.py is `headrace start` with its own code.")
            return 0
        if command not in COMMANDS:
            raise InputError(f"no command {command!r}; there are {', '.join(COMMANDS)}")
        module, _, function = COMMANDS[command][0].partition(":")
        code = int(getattr(importlib.import_module(module), function or "main")(rest))
        sys.stdout.flush()
        return code
    except HeadraceError as error:
        print(f"headrace: error: {error}", file=sys.stderr)
        return error.exit_code
    except ImportError as error:
        print(f"headrace: error: {command} needs a package that is not here: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `| head`: whoever read has what they wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left in the buffer goes nowhere
        return 1
    except OSError as error:
        print(f"headrace: error: {command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("headrace: interrupted", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
