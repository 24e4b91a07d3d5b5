"""Signs of life of a rank: files that the rank touches in the signal folder, which the launcher watches.

The rank touches `rankN` when it has made a step, taken a batch or finished a collective. It touches `moved-rankN` when
its main thread has moved to another place in the program. That is a weaker sign: the thread may loop for ever.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from headrace.events import keep_going
from headrace.rank.receipts import Receipts

LOOK_EVERY_S = 0.5
_noted = 0
_counters: list[Callable[[], int]] = [lambda: _noted]


def note_progress() -> None:
    """Record that the rank has made progress, such as taking a batch. This is cheap enough for every batch."""
    global _noted
    _noted += 1


def add_counter(counter: Callable[[], int]) -> None:
    """Register a function that returns a number which grows with the rank's progress. Another thread calls it."""
    _counters.append(counter)


def innermost_frame(thread: int) -> FrameType | None:
    """Return the innermost frame of a thread, or None if the thread has ended.

    Garbage collection is off meanwhile: in early releases of Python 3.11, a collection inside `_current_frames` could
    stop the interpreter (CPython's gh-106883).
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames().get(thread)
    finally:
        if collects:
            gc.enable()


class Watch:
    """A thread that touches `rankN` when the rank makes progress, and `moved-rankN` when the main thread moves."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._strong, self._weak = folder / f"rank{rank}", folder / f"moved-rank{rank}"
        self._receipts = Receipts(folder, rank)
        self._counts: list[int] = []
        self._place: tuple[Any, ...] = ()
        self._has_failed = False
        self._stopped = threading.Event()
        self._main = threading.get_ident()
        self._thread = threading.Thread(target=self._run, name="signs of life", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread. After the script's end, a counter may read objects that no longer exist."""
        self._stopped.set()
        self._thread.join(2 * LOOK_EVERY_S)
        with contextlib.suppress(OSError):
            self._receipts.look(force=True)

    def _run(self) -> None:
        while not self._stopped.wait(LOOK_EVERY_S):
            for work in (self._show_life, self._receipts.look):
                try:
                    work()
                except OSError as error:  # a full disk or no free descriptor: this may pass, so the rank runs on
                    self._say_once(error)

    def _show_life(self) -> None:
        counts = self._counts
        with keep_going():
            counts = [counter() for counter in list(_counters)]
        if sum(counts) != sum(self._counts):
            self._strong.touch()
            self._counts = counts
        place = self._main_thread_at()
        if place != self._place:
            self._weak.touch()
            self._place = place

    def _say_once(self, error: OSError) -> None:
        if not self._has_failed:
            with contextlib.suppress(OSError, ValueError):
                print(f"cannot write this rank's progress ({error}); trying again", file=sys.__stderr__, flush=True)
        self._has_failed = True

    def _main_thread_at(self) -> tuple[Any, ...]:
        frame, found = innermost_frame(self._main), []
        while frame is not None:
            found.append((id(frame.f_code), frame.f_lasti))
            frame = frame.f_back
        return tuple(found)
