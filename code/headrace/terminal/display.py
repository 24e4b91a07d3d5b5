"""Print lines in any locale. On a terminal, a status line below them shows the job's progress."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, TextIO

GONE = (OSError, ValueError)
"""Errors from a terminal that is gone or cannot show a character. They are ignored: files still get every line."""


def print_every_character(encoding: str | None = None) -> None:
    """Make stdout and stderr print an escape sequence for a character that the encoding lacks, instead of raising.

    Args:
        encoding: encoding of all further output; None: the current one.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the caller closed it, with `>&-` in a shell
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding=encoding, errors="backslashreplace")


def can_show(text: str, stream: TextIO) -> bool:
    """Return whether a stream's encoding has all characters of `text`."""
    try:
        text.encode(getattr(stream, "encoding", None) or "utf-8")
    except (UnicodeError, LookupError):
        return False
    return True


class Display:
    """Prints whole lines, from any thread. Use as a context manager.

    Args:
        status: function that is called a few times a second and returns the status line; None: no status line.
        listener: function that is called with each line before the line is printed.
    """

    def __init__(
        self,
        stream: TextIO,
        status: Callable[[], str] | None = None,
        listener: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._stream, self._status, self._listener = stream, status, listener
        self._live: Any = None
        self._lock = threading.Lock()

    @property
    def is_live(self) -> bool:
        """True if the stream is a terminal that can show a status line."""
        shows_status = can_show("⠋·", self._stream)  # characters of the spinner and the status
        return shows_status and self._stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"

    def __enter__(self) -> Display:
        if self.is_live and self._status:
            from rich.console import Console
            from rich.live import Live
            from rich.spinner import Spinner
            from rich.text import Text

            status, spinner = self._status, Spinner("dots")

            def last_line() -> Spinner:
                spinner.update(text=Text(status(), style="bold"))
                return spinner

            console = Console(file=self._stream, highlight=False, soft_wrap=True)
            live = Live(
                console=console,
                get_renderable=last_line,
                refresh_per_second=4,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            with contextlib.suppress(*GONE):
                live.start()
                self._live = live
        return self

    def __exit__(self, *_: object) -> None:
        live, self._live = self._live, None
        if live:
            with contextlib.suppress(*GONE):
                live.stop()

    def ask(self, question: str) -> bool:
        """Hide the status line, and ask a yes-or-no question; return False if there is no terminal."""
        was_live = self._live is not None
        self.__exit__()
        try:
            return ask(question)
        finally:
            if was_live:
                self.__enter__()

    def line(self, text: str) -> None:
        """Print a line, which may have ANSI colors."""
        self._listener(text)
        live = self._live
        with self._lock, contextlib.suppress(*GONE):
            if live:
                from rich.text import Text

                live.console.print(Text.from_ansi(text), soft_wrap=True)
            else:
                self._stream.write(text + "\n")
                self._stream.flush()


def ask(question: str) -> bool:
    """Ask a yes-or-no question on the terminal; return False if there is no terminal."""
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        return sys.stdin.isatty() and input(question).strip().lower() in ("y", "yes")
    return False
