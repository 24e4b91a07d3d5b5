"""Every error headrace raises on purpose.

HeadraceError              one clear line for the user; never a traceback
├── InputError             exit 2: a flag, a file or the environment is wrong
│   └── TopologyError      the hosts and groups of this job do not add up
├── SetupError             exit 1: this machine lacks something (compiler, package, free port)
└── DeadlineError          exit 1: something awaited did not come in time

That a job ran and failed is no error of headrace's but an outcome (`headrace.outcome`).
"""

from __future__ import annotations


class HeadraceError(Exception):
    """Base of all: its text is what the user reads, `exit_code` what the process returns."""

    exit_code = 1


class InputError(HeadraceError):
    """What the user gave is wrong. The text says what, why, and how to fix it."""

    exit_code = 2


class TopologyError(InputError):
    """The description of hosts and groups contradicts itself. The text says what was read where."""


class SetupError(HeadraceError):
    """This machine cannot run the job as it stands."""


class DeadlineError(HeadraceError):
    """A wait reached its deadline. The text names what was awaited and for how long."""
