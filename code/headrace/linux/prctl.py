"""Settings of a Linux process: its parent, children, limits and priority. Needs only the standard library."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time

MOST_OPEN_FILES = 1 << 16
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(signum: int = signal.SIGKILL) -> None:
    """Have the kernel send `signum` to this process when its parent ends for any reason."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that teardown finds all of them."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def allow_open_files() -> None:
    """Raise the limit of open files and connections for this process and its children, if the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MOST_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def yield_to_others(nice: int) -> None:
    """Lower the priority of this process and of the session that it leads.

    If the kernel groups processes by session (`autogroup`, on most desktops and bare machines), each session gets an
    equal share of the processors. The niceness of the group then counts, and not the niceness of its processes.
    """
    os.nice(nice)
    for _ in range(3):
        try:
            with open("/proc/self/autogroup", "w", encoding="ascii") as group:
                group.write(str(nice))
            return
        except BlockingIOError:  # the kernel allows unprivileged users one write every 0.1 s
            time.sleep(0.11)
        except OSError:
            return  # the kernel has no autogroup
