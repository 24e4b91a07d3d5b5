"""`headrace new DIR`: write a training script to edit, and print how to run it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from headrace.errors import InputError
from headrace.frameworks import DEFAULT, FRAMEWORKS
from headrace.job.bundled import TRAINING_SCRIPTS, own_folder
from headrace.terminal.parser import OneLineParser

NEXT = """Put your dataset, model and training into {path}. In its folder:
  run it here                      headrace run{flag} --num_of_data_instances 1 --hyperparameter model=small_cnn
  print the request to SageMaker   headrace submit{flag} --dry_run"""
LINT = """
  find slow parts of its pipeline  headrace lint {script}"""


def main(argv: Sequence[str]) -> int:
    """Write the script; return the exit code. Raise `InputError` if the file exists already."""
    parser = OneLineParser(prog="headrace new", description="Begin a project: write a training script for you to edit.")
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of the project; made if missing")
    parser.add_argument("--framework", choices=FRAMEWORKS, default=DEFAULT.name, help="(%(default)s)")
    given = parser.parse_args(argv)
    folder: Path = given.folder
    name = TRAINING_SCRIPTS[given.framework]
    if (folder / name).exists():
        raise InputError(f"{folder / name} exists already; delete it, or choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(own_folder() / name, folder / name)
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror or error}") from error
    text = NEXT + LINT if FRAMEWORKS[given.framework].has_lint else NEXT
    flag = "" if given.framework == DEFAULT.name else f" --framework {given.framework}"
    print(text.format(path=folder / name, script=name, flag=flag), file=sys.stderr)
    return 0
