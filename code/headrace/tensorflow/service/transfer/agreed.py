"""How batches travel in a job: by one protocol that all its workers have, which the leader decides."""

from __future__ import annotations

import time
from pathlib import Path

from headrace.errors import DeadlineError

_POLL_S = 0.05


def agreed_protocol(path: Path, timeout_s: float) -> str:
    """What the launcher leaves in a file, as soon as it does.

    Raises:
        DeadlineError: it has not, for so long.
    """
    deadline = time.monotonic() + timeout_s
    while not path.is_file():
        if time.monotonic() > deadline:
            raise DeadlineError(
                f"the leader has not said within startup_timeout_s={timeout_s:g} how batches travel; "
                "does it wait for a data host?"
            )
        time.sleep(_POLL_S)
    return path.read_text(encoding="utf-8").strip()
