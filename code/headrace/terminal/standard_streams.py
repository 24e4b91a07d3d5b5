"""Setup of stdout and stderr so that any character can be printed in any locale."""

from __future__ import annotations

import io
import os
import sys


def print_every_character(encoding: str | None = None) -> None:
    """Make stdout and stderr print a character that the encoding lacks as an escape, instead of raising an error.

    Args:
        encoding: encoding of all further output; None: the present one.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the caller closed it, with `>&-` in a shell
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding=encoding, errors="backslashreplace")
