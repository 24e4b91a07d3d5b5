"""`headrace new DIR`: a training script to edit, and how to run it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from headrace.errors import InputError
from headrace.own_files import TEMPLATES, own_folder
from headrace.settings import OneLineParser

NEXT = """{script} is yours: dataset, model, training. Then, in {folder}:
  headrace lint {script}                         what costs most in its pipeline
  headrace start --no-is_cloud_job --num_of_data_instances 1 --hyperparameter model=small_cnn   run it here
  headrace start --dry_run                       the request to SageMaker"""


def main(argv: Sequence[str]) -> int:
    """The exit code. Raises `InputError` when a file is there already."""
    parser = OneLineParser(prog="headrace new", description="Begin a project: a training script to edit.")
    parser.add_argument("folder", type=Path, metavar="DIR", help="made where it is missing")
    folder: Path = parser.parse_args(argv).folder
    for name in TEMPLATES:
        if (folder / name).exists():
            raise InputError(f"{folder / name} exists already; choose another folder, or delete it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in TEMPLATES:
            shutil.copy(own_folder() / name, folder / name)
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror or error}") from error
    print(NEXT.format(folder=folder, script=TEMPLATES[0]), file=sys.stderr)
    return 0
