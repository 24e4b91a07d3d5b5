"""Watch for ranks that do not start or do not end: MPI has no deadline for either, and Open MPI can hang."""

from __future__ import annotations

import math

from headrace.events import PREFLIGHT_FAILED, PREFLIGHT_STARTED, RANK_FAILED, RANK_LEAVING, Event
from headrace.job.settings import Settings

END_S = 30.0
"""Seconds that MPI may take to end once all ranks have left, or one has failed."""
ABORT_S = 5.0
"""Seconds that ranks may take to end once their preflight has failed."""


class RankWatch:
    """Receives the ranks' log events and says what is overdue.

    Args:
        ranks: the number of ranks on all hosts.
    """

    def __init__(self, settings: Settings, ranks: int) -> None:
        self._settings, self._ranks = settings, ranks
        self._left: set[str] = set()
        self._starts_by = self._leaves_by = self._aborts_by = math.inf

    def begin(self, now: float) -> None:
        """Note that the ranks are being started."""
        if self._settings.preflight:
            self._starts_by = now + self._settings.preflight_timeout_s

    def take_event(self, event: Event, now: float) -> None:
        """Note a rank's log event."""
        if event.name == PREFLIGHT_STARTED:
            self._starts_by = math.inf
        elif event.name == PREFLIGHT_FAILED:
            self._aborts_by = min(self._aborts_by, now + ABORT_S)
        elif event.name == RANK_FAILED:
            self.rank_failed(now)
        elif event.name == RANK_LEAVING:
            self._left.add(event.fields.get("rank", ""))
            if len(self._left) == self._ranks:
                self._leaves_by = min(self._leaves_by, now + END_S)

    def rank_failed(self, now: float) -> None:
        """Note that a rank has failed, as its event or its output says."""
        self._aborts_by = min(self._aborts_by, now + END_S)

    def has_not_started(self, now: float) -> bool:
        """Return whether MPI's start is overdue, as a preflight's first event shows."""
        return now > self._starts_by

    def has_left(self, now: float) -> bool:
        """Return whether all ranks left more than `END_S` ago."""
        return now > self._leaves_by

    def has_not_aborted(self, now: float) -> bool:
        """Return whether a rank failed so long ago that all ranks should have ended."""
        return now > self._aborts_by
