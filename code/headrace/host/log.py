"""The log of one host: each line of each process, with time, host and role in front."""

from __future__ import annotations

import datetime
import re
import sys
import threading
from typing import TextIO

from headrace.events import format_event
from headrace.frameworks import FRAMEWORKS

ROLE_WIDTH = 10
_NOISE = re.compile("|".join(each.noise for each in FRAMEWORKS.values() if each.noise))
LAUNCHER = "launcher"


class HostLog:
    """Writes a host's log in whole lines. Any thread may call it."""

    def __init__(self, host: str, stream: TextIO | None = None) -> None:
        self._host = host
        self._stream = stream or sys.stdout
        self._lock = threading.Lock()

    def line(self, role: str, text: str) -> None:
        """Write one line with UTC time, host and role in front; drop it if it is a framework's noise."""
        if _NOISE.search(text):
            return
        stamp = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        with self._lock:
            try:
                self._stream.write(f"{stamp} {self._host} {role:<{ROLE_WIDTH}} {text}\n")
                self._stream.flush()
            except (OSError, ValueError):
                pass  # The log's reader is gone or its disk is full; the job goes on and its outcome still counts.

    def say(self, text: str) -> None:
        """Write a line with the launcher as its role."""
        self.line(LAUNCHER, text)

    def event(self, event_name: str, /, **fields: object) -> None:
        """Write a log event (see `headrace.events`) with the launcher as its role."""
        self.line(LAUNCHER, format_event(event_name, **fields))
