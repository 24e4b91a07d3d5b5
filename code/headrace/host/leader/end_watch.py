"""Watch for ranks that do not end. MPI has no deadline of its own, and Open MPI has been seen to hang at the end."""

from __future__ import annotations

from headrace.events import RANK_FAILED, RANK_LEAVING, Event

END_S = 30.0
"""Seconds that MPI may take to end once all ranks have left, or one has failed."""


class EndWatch:
    """Receives the ranks' log events and says whether they should have ended.

    Args:
        ranks: the number of ranks on all hosts.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._left: set[str] = set()
        self._all_left_at: float | None = None
        self._failed_at: float | None = None

    def take_event(self, event: Event, now: float) -> None:
        """Note a rank's log event."""
        if event.name == RANK_LEAVING:
            self._left.add(event.fields.get("rank", ""))
            if len(self._left) == self._ranks and self._all_left_at is None:
                self._all_left_at = now
        elif event.name == RANK_FAILED:
            self.rank_failed(now)

    def rank_failed(self, now: float) -> None:
        """Note that a rank has failed, as its event or its output says."""
        self._failed_at = now if self._failed_at is None else self._failed_at

    def has_left(self, now: float) -> bool:
        """Return whether all ranks left more than `END_S` ago."""
        return self._all_left_at is not None and now - self._all_left_at > END_S

    def has_not_aborted(self, now: float) -> bool:
        """Return whether a rank failed more than `END_S` ago."""
        return self._failed_at is not None and now - self._failed_at > END_S
