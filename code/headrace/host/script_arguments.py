"""The training script's arguments: the job's hyperparameters, without the launcher's own settings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from headrace.job.settings import HYPERPARAMETERS, pairs

OF_TUNING_JOBS = "_tuning_"
"""Prefix of the hyperparameters that SageMaker adds to each job of a tuning job."""


def script_arguments(argv: Sequence[str], hyperparameters: Path) -> list[str]:
    """Return the launcher's arguments that the user meant for the training script, as `--name value`.

    Args:
        hyperparameters: the host's hyperparameters.json. Arguments that are not in this file were added by SageMaker's
            toolkit, not by the user, and are left out.
    """
    try:
        given = json.loads(hyperparameters.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        given = None
    words: list[str] = []
    for flag, value in pairs(argv):
        name = flag.lstrip("-")
        not_given = isinstance(given, dict) and name not in given
        if not (name in HYPERPARAMETERS or name.startswith(OF_TUNING_JOBS) or not_given):
            words += [flag, value]
    return words
