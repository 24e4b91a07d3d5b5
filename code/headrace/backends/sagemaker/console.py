"""The functions by which a submission prints, asks and waits; tests replace them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Console:
    """Functions that print a line, ask a yes-or-no question, and sleep."""

    say: Callable[[str], None]
    confirm: Callable[[str], bool]
    sleep: Callable[[float], None] = time.sleep
