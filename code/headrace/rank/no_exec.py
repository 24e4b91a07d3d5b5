"""A ban on `os.exec…` in ranks and feed servers, since the job loses a process that replaces itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NoReturn

from headrace.errors import InputError


def refuse_exec() -> None:
    """Make `os.exec…` raise `InputError` in this process. Processes that it starts may still call it."""
    own = os.getpid()

    def refused(execute: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        def refuse(*arguments: Any) -> NoReturn:
            if os.getpid() == own:
                raise InputError(
                    "the script replaces its process (os.exec…), but the job waits for this very process: call the "
                    "function directly instead; to set an environment variable, use "
                    "--custom_mpi_options='-x NAME=VALUE'"
                )
            execute(*arguments)

        return refuse

    os.execv, os.execve = refused(os.execv), refused(os.execve)  # the other exec functions call these two
