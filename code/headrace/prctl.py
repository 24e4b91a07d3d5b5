"""What Linux is asked for about a process's parents and children; needs nothing that is not Python's own."""

from __future__ import annotations

import ctypes
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(signum: int = signal.SIGKILL) -> None:
    """Have the kernel send `signum` to this process when its parent ends, however it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, so that none escapes teardown."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
