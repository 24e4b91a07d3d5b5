"""A rank or a feed server is the process that was started as it: one that replaces itself is no longer it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NoReturn

from headrace.errors import InputError


def refuse_exec() -> None:
    """From now on `os.exec…` raises `InputError` in this process. Processes that it starts may."""
    own = os.getpid()

    def refused(execute: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        def refuse(*arguments: Any) -> NoReturn:
            if os.getpid() == own:
                raise InputError(
                    "the script replaces its process (os.exec…), which the job has started and waits for: leave that "
                    "out on the hosts, and call what it is for, or set --custom_mpi_options='-x NAME=VALUE' if it is "
                    "for a variable"
                )
            execute(*arguments)

        return refuse

    os.execv, os.execve = refused(os.execv), refused(os.execve)  # all others call these
