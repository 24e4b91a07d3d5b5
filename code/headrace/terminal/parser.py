"""Report errors of argument parsers and commands in one line each."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Callable
from typing import Any

from headrace.errors import HeadraceError, InputError
from headrace.terminal.display import print_every_character

MOST_SAID = 300
"""Limit on the printed characters of a system error, which may contain a very long file name."""


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


def exit_status(prog: str, command: Callable[[], int]) -> int:
    """Run a command and return its exit code: 0, 1 if it failed, 2 if the input is wrong. Print errors as one line."""
    print_every_character()
    try:
        code = command()
        sys.stdout.flush()
        return code
    except HeadraceError as error:
        print(f"{prog}: error: {error}", file=sys.stderr)
        return error.exit_code
    except ImportError as error:
        print(f"{prog}: error: this command needs a package that is not installed: {error}", file=sys.stderr)
    except BrokenPipeError:  # the reader, such as `head`, is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # drops what is left in the buffer
    except OSError as error:  # for example: a deleted folder, an overlong name, hyperparameters too long for a program
        print(f"{prog}: error: {str(error)[:MOST_SAID]}", file=sys.stderr)
    except KeyboardInterrupt:
        print(f"{prog}: interrupted", file=sys.stderr)
    return 1
