"""What Linux is asked for about processes: parents, children, priority; needs nothing that is not Python's own."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(signum: int = signal.SIGKILL) -> None:
    """Have the kernel send `signum` to this process when its parent ends, however it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, so that none escapes teardown."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def allow_open_files(most: int = 1 << 16) -> None:
    """Let this process, and those that it starts, open so many files and connections, where the hard limit lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def yield_to_others(nice: int) -> None:
    """Lower this process's priority, and that of the session that it leads.

    Where the kernel groups processes by session (`autogroup`, on most desktops and bare machines), each session gets an
    equal share of the processors whatever its processes' niceness; then the group's own niceness counts.
    """
    os.nice(nice)
    for _ in range(3):
        try:
            with open("/proc/self/autogroup", "w", encoding="ascii") as group:
                group.write(str(nice))
            return
        except BlockingIOError:  # the kernel lets unprivileged users do this every 0.1 s
            time.sleep(0.11)
        except OSError:
            return  # no such grouping
