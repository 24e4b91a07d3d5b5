"""Watches the ranks' end. MPI sets itself no deadline for it, and Open MPI's has been seen to take for ever."""

from __future__ import annotations

from headrace.events import RANK_FAILED, RANK_LEAVING, Event

END_S = 30.0
"""How long MPI's end may take once all ranks have left, or one has failed."""


class EndWatch:
    """Fed with the ranks' log events.

    Args:
        ranks: how many there are on all hosts.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._left: set[str] = set()
        self._all_left_at: float | None = None
        self._failed_at: float | None = None

    def take_event(self, event: Event, now: float) -> None:
        """A log event of a rank."""
        if event.name == RANK_LEAVING:
            self._left.add(event.fields.get("rank", ""))
            if len(self._left) == self._ranks and self._all_left_at is None:
                self._all_left_at = now
        elif event.name == RANK_FAILED:
            self.rank_failed(now)

    def rank_failed(self, now: float) -> None:
        """A rank has, as its event or its output says."""
        self._failed_at = now if self._failed_at is None else self._failed_at

    def has_left(self, now: float) -> bool:
        """Whether all ranks have done all that they had to do, and should be gone by now."""
        return self._all_left_at is not None and now - self._all_left_at > END_S

    def has_not_aborted(self, now: float) -> bool:
        """Whether the ranks should be gone by now because one has failed."""
        return self._failed_at is not None and now - self._failed_at > END_S
