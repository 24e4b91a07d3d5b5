"""Lines for people, and below them, on a terminal, one that always says how far the job is."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, TextIO

GONE = (OSError, ValueError)
"""What a terminal raises that is gone, or that cannot show a character: the files still get every line."""


class Display:
    """Takes lines from any thread and prints them whole. Use as a context manager.

    Args:
        stream: where to print.
        status: the text of the last line, asked a few times a second; None: there is no such line.
    """

    def __init__(self, stream: TextIO, status: Callable[[], str] | None = None) -> None:
        self._stream, self._status = stream, status
        self._live: Any = None
        self._lock = threading.Lock()

    @property
    def is_live(self) -> bool:
        """Whether there is a terminal that can have such a line."""
        try:
            "⠋·".encode(getattr(self._stream, "encoding", None) or "utf-8")  # of the spinner and the status
        except (UnicodeError, LookupError):
            return False
        return self._stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"

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
            live = Live(console=console, get_renderable=last_line, refresh_per_second=4, transient=True,
                        redirect_stdout=False, redirect_stderr=False)  # fmt: skip
            with contextlib.suppress(*GONE):
                live.start()
                self._live = live
        return self

    def __exit__(self, *_: object) -> None:
        live, self._live = self._live, None
        if live:
            with contextlib.suppress(*GONE):
                live.stop()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Without the last line: somebody is asked something."""
        was_live = self._live is not None
        self.__exit__()
        try:
            yield
        finally:
            if was_live:
                self.__enter__()

    def line(self, text: str) -> None:
        """A line, which may have ANSI colors."""
        live = self._live
        with self._lock, contextlib.suppress(*GONE):
            if live:
                from rich.text import Text

                live.console.print(Text.from_ansi(text), soft_wrap=True)
            else:
                self._stream.write(text + "\n")
                self._stream.flush()
