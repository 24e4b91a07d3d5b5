"""Write figures to destinations, each in a thread of its own, so that a slow or broken destination delays no step."""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.job.settings import without_password

Record = Mapping[str, Any]
"""A record has `time` and the keys of its kind. The kinds are: rank 0's step (`step`, `step_ms`, …), groups (`groups`),
workers (`workers`), an event (`event` and `what`), and the job's summary (`summary`)."""
Write = Callable[[Sequence[Record]], None]
MOST_WAITING = 1000
"""The number of records that may wait to be written; further ones are dropped."""
CLOSE_S = 2.0
"""Longest time, in seconds, that the end of a job waits for the last records to be written."""


class Exporter:
    """Writes records to one destination. Each write takes all records that came since the previous write.

    Args:
        open_: opens the destination, and returns a function that writes records. The exporter's thread calls both.
        say: function that logs a message: the first failure, and the number of dropped records.
    """

    def __init__(self, name: str, open_: Callable[[], Write], say: Callable[[str], None]) -> None:
        self._name, self._open, self._say = name, open_, say
        self._records: queue.SimpleQueue[Record | None] = queue.SimpleQueue()
        self._failed = False
        self._dropped = self._in_hand = 0
        self._thread = threading.Thread(target=self._run, name=f"figures to {name}", daemon=True)
        self._thread.start()

    def put(self, record: Record) -> None:
        """Queue a record, or drop it if `MOST_WAITING` records are already queued. This call never blocks."""
        if self._records.qsize() < MOST_WAITING:
            self._records.put(record)
        else:
            self._dropped += 1

    def close(self, last: Record) -> None:
        """Write the waiting records and the last one; give up after `CLOSE_S`."""
        self._records.put(last)
        self._records.put(None)
        self._thread.join(CLOSE_S)
        # One of the waiting items is None, which marks the end.
        left = self._in_hand + max(self._records.qsize() - 1, 0) if self._thread.is_alive() else 0
        if self._dropped + left:
            self._say(f"{self._name} was too slow, or did not answer: {self._dropped + left} records were dropped")

    def _run(self) -> None:
        write: Write | None = None
        while True:
            if write is None:
                write = self._attempt(self._open)
            records = [self._records.get()]
            with contextlib.suppress(queue.Empty):
                while True:
                    records.append(self._records.get_nowait())
            found = [record for record in records if record is not None]
            self._in_hand = len(found)
            if write and found:
                self._attempt(functools.partial(write, found))
            self._in_hand = 0
            if len(found) < len(records):
                return

    def _attempt(self, do: Callable[[], Any]) -> Any:
        try:
            return do()
        except Exception as error:  # training goes on, whatever failed
            if not self._failed:
                said = without_password(str(error).split("\n", 1)[0])
                self._say(f"cannot write the job's figures to {self._name}: {type(error).__name__}: {said}")
            self._failed = True
            return None
