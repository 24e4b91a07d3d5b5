"""The one protocol that carries a job's batches: all workers have it, and the leader decides."""

from __future__ import annotations

import time
from pathlib import Path

from headrace.errors import DeadlineError

_POLL_S = 0.05


def agreed_protocol(path: Path, timeout_s: float) -> str:
    """Wait for the file with the job's protocol, which the launcher writes, and return the protocol.

    Raises:
        DeadlineError: there is no such file after `timeout_s` seconds.
    """
    deadline = time.monotonic() + timeout_s
    while not path.is_file():
        if time.monotonic() > deadline:
            raise DeadlineError(
                f"the leader has not decided within startup_timeout_s={timeout_s:g} by which protocol workers send "
                "batches: see in its log whether it waits for a data host"
            )
        time.sleep(_POLL_S)
    return path.read_text(encoding="utf-8").strip()
