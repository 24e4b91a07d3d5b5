"""The errors that headrace raises on purpose.

HeadraceError              one clear line for the user; never a traceback
├── InputError             exit 2: a flag, a file, the environment or the topology is wrong
├── SetupError             exit 1: this machine lacks something (compiler, package, free port)
└── DeadlineError          exit 1: a wait reached its deadline

A job that ran and failed is not an error of headrace but an outcome (`headrace.outcome`).
"""

from __future__ import annotations


class HeadraceError(Exception):
    """Base class of all errors. The user reads its text, and the process exits with `exit_code`."""

    exit_code = 1


class InputError(HeadraceError):
    """Raised for wrong input from the user. The text says what is wrong, why, and how to fix it."""

    exit_code = 2


class SetupError(HeadraceError):
    """Raised if this machine lacks something that the job needs."""


class DeadlineError(HeadraceError):
    """Raised if a wait reaches its deadline. The text says what was awaited, and for how long."""
