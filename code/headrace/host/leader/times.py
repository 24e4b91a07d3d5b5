"""When a job came how far: monotonic seconds, kept by the leader and told in the summary."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any


@dataclass
class JobTimes:
    """Moments of one job; None: it has not come so far."""

    began_at: float
    training_at: float | None = None
    """The trainer was started."""
    workers_ready_at: float | None = None
    stepping_at: float | None = None
    """The trainer could have taken a step."""
    first_step_at: float | None = None
    training_ended_at: float | None = None

    def train_s(self) -> float | None:
        """Seconds from the first step to the training's end, or until now; None where training never began."""
        begin = self.first_step_at or self.training_at
        return None if begin is None else self._ended_at() - begin

    def as_json(self) -> dict[str, Any]:
        """What the summary tells, at the end of the teardown."""
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
        """Training is over, now unless it was before."""
        self.training_ended_at = self._ended_at()

    def _ended_at(self) -> float:
        return self.training_ended_at or time.monotonic()

    def _since_start(self, moment: float | None) -> float | None:
        return None if moment is None else round(moment - self.began_at, 3)
