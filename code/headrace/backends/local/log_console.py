"""Print all hosts' logs in one stream, in color on a terminal, and write each to its own file."""

from __future__ import annotations

import datetime
import os
import re
import sys
from pathlib import Path
from typing import IO, TextIO

from headrace.cluster.run_files import RunPaths
from headrace.events import parse_event
from headrace.job.phases import Phases
from headrace.terminal.display import Display

# The prefix that a launcher puts before every line (see headrace.host.log).
_PREFIX = re.compile(r"^(?P<date>\S+T)(?P<time>[\d:]{8})\.\d+Z (?P<host>\S+) (?P<role>\S+) *(?P<text>.*)$")
_RUNNER = "cluster"
_COLORS = {"launcher": "36", "dispatcher": "35", "worker": "34", "rank": "32", "mpirun": "33", _RUNNER: "1"}
_RESET = "\033[0m"


class Console:
    """Prints whole lines from any thread; on a terminal the last line shows the job's progress."""

    def __init__(self, phases: Phases | None = None, stream: TextIO | None = None) -> None:
        stream = stream or sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (stdout was closed)
        self._phases = phases
        self._color = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._told: set[str] = set()
        """Hosts for which a failed write to the log file has been reported."""
        self.display = Display(stream, phases.text if phases else None)

    def say(self, text: str) -> None:
        """Print a line about the job as a whole."""
        self._print(datetime.datetime.now(datetime.timezone.utc).strftime("%H:%M:%S"), "-", _RUNNER, text)

    def host_line(self, host: str, line: str, file: IO[bytes]) -> None:
        """Write a line of a host's output unchanged to its log file `file`, and a shorter form to the stream.

        If the disk is full, the file misses lines. The host's output is still read: a full pipe would block the host.
        """
        match = _PREFIX.match(line)
        if match is None:  # The launcher had no log yet, or a program wrote past it.
            stamp = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
            line = f"{stamp.replace('+00:00', 'Z')} {host} {'host':<10} {line}"
            match = _PREFIX.match(line)
        try:
            file.write(line.encode() + b"\n")
        except OSError as error:
            if host not in self._told:
                self._told.add(host)
                self.say(f"lines are missing in {host}'s log file: {error.strerror}")
        if match:
            self._print(match["time"], host, match["role"], match["text"])
            event = parse_event(match["text"])
            if event and self._phases and self._phases.take(host, event) and not self.display.is_live:
                self.say(self._phases.text())

    def _print(self, time: str, host: str, role: str, text: str) -> None:
        start = end = ""
        if self._color:
            start, end = f"\033[{_COLORS.get(re.sub(r'[-0-9]+$', '', role), '0')}m", _RESET
        self.display.line(f"{time} {start}{host:<7} {role:<10}{end} {text}")


def open_log(folder: Path, host: str) -> IO[bytes]:
    """Open the host's log file without a buffer. Writing a line to a full disk then raises `OSError` at once."""
    return open(RunPaths(folder).log(host), "ab", buffering=0)
