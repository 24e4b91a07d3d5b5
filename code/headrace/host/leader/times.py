"""The moments at which a job reached each stage, kept by the leader for the summary."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any


@dataclass
class JobTimes:
    """Moments of one job in monotonic seconds; None for a stage that it has not reached."""

    began_at: float
    training_at: float | None = None
    """The start of the trainer."""
    workers_ready_at: float | None = None
    stepping_at: float | None = None
    """The moment at which the trainer was ready for its first step."""
    first_step_at: float | None = None
    training_ended_at: float | None = None

    def train_s(self) -> float | None:
        """Return the seconds from the first step to training's end, or to now; None if training never began."""
        begin = self.first_step_at or self.training_at
        return None if begin is None else self._ended_at() - begin

    def as_json(self) -> dict[str, Any]:
        """Return the summary's times; call it at the end of the teardown."""
        return {
            "time_to_first_step_s": self._since_start(self.first_step_at) or 0.0,
            "startup_s": {
                "trainer_started": self._since_start(self.training_at),
                "workers_ready": self._since_start(self.workers_ready_at),
                "trainer_ready": self._since_start(self.stepping_at),
                "first_step": self._since_start(self.first_step_at),
            },
            "teardown_s": round(time.monotonic() - self._ended_at(), 3),
        }

    def end(self) -> None:
        """Note that training has ended, unless it has been noted before."""
        self.training_ended_at = self._ended_at()

    def _ended_at(self) -> float:
        return self.training_ended_at or time.monotonic()

    def _since_start(self, moment: float | None) -> float | None:
        return None if moment is None else round(moment - self.began_at, 3)
