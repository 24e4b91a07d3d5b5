"""How a submission talks to the person, and waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Console:
    """Lines to say, questions to ask, and pauses."""

    say: Callable[[str], None]
    confirm: Callable[[str], bool]
    sleep: Callable[[float], None] = time.sleep
