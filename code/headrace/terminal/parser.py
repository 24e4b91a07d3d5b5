"""Argument parsers whose errors are one line."""

from __future__ import annotations

import argparse
import difflib
import re
from typing import Any

from headrace.errors import InputError


class OneLineParser(argparse.ArgumentParser):
    """An argument parser whose errors are one line and raise `InputError` (exit 2)."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> Any:
        meant = ""
        if unknown := re.search(r"unrecognized arguments: (--[^\s=]+)", message):
            known = [option for action in self._actions for option in action.option_strings]
            close = difflib.get_close_matches(unknown[1], known, 1)
            meant = f"; did you mean {close[0]}?" if close else ""
        raise InputError(f"{message}{meant}; see {self.prog} --help")
