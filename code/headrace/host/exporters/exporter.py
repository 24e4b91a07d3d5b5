"""One place where figures go, with a thread of its own: what is slow, hangs or fails there costs figures, no step."""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.job.settings import without_password

Record = Mapping[str, Any]
"""`time`; and `step`, `step_ms`, … of rank 0, or `groups`, `workers`, `event` and `what`, or the job's `summary`."""
Write = Callable[[Sequence[Record]], None]
MOST_WAITING = 1000
"""Records that wait to be written; further ones are dropped."""
CLOSE_S = 2.0
"""How long the end of a job waits for what is left."""


class Outlet:
    """Hands records to a place, as many at once as have come meanwhile.

    Args:
        open_: makes what takes records; called in the outlet's thread, as all that it makes.
        say: is told of the first failure, and of records that were dropped.
    """

    def __init__(self, name: str, open_: Callable[[], Write], say: Callable[[str], None]) -> None:
        self._name, self._open, self._say = name, open_, say
        self._records: queue.Queue[Record | None] = queue.Queue(MOST_WAITING)
        self._failed = False
        self._dropped = self._in_hand = 0
        self._thread = threading.Thread(target=self._run, name=f"figures to {name}", daemon=True)
        self._thread.start()

    def put(self, record: Record) -> None:
        """Never waits."""
        try:
            self._records.put_nowait(record)
        except queue.Full:
            self._dropped += 1

    def close(self, last: Record) -> None:
        """Writes what is left, and this, if that takes no longer than `CLOSE_S`."""
        for record in (last, None):
            while True:
                try:
                    self._records.put_nowait(record)
                    break
                except queue.Full:
                    self._drop_oldest()
        self._thread.join(CLOSE_S)
        # Of what waits, one is the end's own.
        left = self._in_hand + max(self._records.qsize() - 1, 0) if self._thread.is_alive() else 0
        if self._dropped + left:
            self._say(f"{self._name} was too slow, or did not answer: {self._dropped + left} records did not get there")

    def _drop_oldest(self) -> None:
        with contextlib.suppress(queue.Empty):
            self._records.get_nowait()
            self._dropped += 1

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
        except Exception as error:  # whatever it is, training goes on
            if not self._failed:
                said = without_password(str(error).split("\n", 1)[0])
                self._say(f"{self._name} does not take the job's figures: {type(error).__name__}: {said}")
            self._failed = True
            return None
