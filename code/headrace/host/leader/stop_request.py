"""Handle a stop request (SIGTERM on any host): save one more checkpoint if possible, then end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headrace.cluster.run_files import STOP_REQUEST
from headrace.events import CHECKPOINTS_ON_REQUEST, Event
from headrace.host.log import HostLog


class StopRequest:
    """Follows the ranks' checkpoint events, and says when a job with a stop request may end."""

    def __init__(self, signal_dir: Path, grace_s: float, log: HostLog) -> None:
        self._signal_dir = signal_dir
        self._grace_s = grace_s
        self._log = log
        self._answers = False
        self._checkpoints = 0
        self._asked_at: float | None = None
        self._checkpoints_before = 0

    def take_event(self, event: Event) -> None:
        """Note a rank's log event."""
        if event.name == CHECKPOINTS_ON_REQUEST:
            self._answers = True
        elif event.name == "checkpoint":
            self._checkpoints += 1

    def due(self, requests: Mapping[str, str], stepping: bool, now: float) -> tuple[str, str] | None:
        """Return the host with the request and its signal, or None if there is none or rank 0 is saving a checkpoint.

        Args:
            requests: the signal that each host got; empty for none.
            stepping: whether the ranks have made steps, so that there is something to save.
            now: monotonic seconds.
        """
        asked = next(((host, signal_name) for host, signal_name in requests.items() if signal_name), None)
        if asked is None:
            return None
        can_save = stepping and self._answers
        if self._asked_at is None:
            self._asked_at, self._checkpoints_before = now, self._checkpoints
            if can_save:
                self._log.say(f"{asked[0]} got {asked[1]}: asking for a checkpoint, then ending")
                (self._signal_dir / STOP_REQUEST).touch()
        saved = self._checkpoints > self._checkpoints_before
        return asked if not can_save or saved or now - self._asked_at > self._grace_s else None
