"""What is printed comes out, whatever the locale can write."""

from __future__ import annotations

import io
import os
import sys


def print_every_character(encoding: str | None = None) -> None:
    """Print what the encoding lacks as an escape, instead of raising an error or losing the line.

    Args:
        encoding: of all that is printed from now on; None: that of the locale, as it is.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started this: `>&-`
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding=encoding, errors="backslashreplace")
