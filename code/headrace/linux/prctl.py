"""Change how a Linux process ends, adopts orphans, opens files and is scheduled. Needs only the standard library.

As a program, this module makes such changes to its own process, and then executes another program in it:

    prctl.py PARENT_PID NICE CPUS PROGRAM [ARGUMENT…]
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Collection, Sequence

MOST_OPEN_FILES = 1 << 16
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_THIS_FILE = os.path.abspath(__file__)
_CANNOT_START = 2
"""Exit code if the program cannot be executed. The supervisor does not restart a server with this exit code."""
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends for any reason."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


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

    On most desktops and bare machines, the kernel divides the processors equally among sessions (`autogroup`). The
    niceness of a process then counts only within its session, so the session gets this niceness too.
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


def child_command(argv: Sequence[str], nice: int = 0, cpus: Collection[int] = ()) -> list[str]:
    """Return a command that runs `argv` as a child of this process. The child is killed when this process ends.

    The command runs this file. It sets the child's niceness and processors, and then executes `argv` with the same
    process id. Popen's `preexec_fn` is no alternative: in the fork of a process with threads, it can deadlock.

    Args:
        argv: the program and its arguments.
        nice: how far to lower the priority (see `yield_to_others`); 0 keeps it.
        cpus: the processors that the program may use; empty means all.
    """
    return [sys.executable, "-S", _THIS_FILE, str(os.getpid()), str(nice), ",".join(map(str, sorted(cpus))), *argv]


def _become(parent: str, nice: str, cpus: str, *argv: str) -> None:
    die_with_parent()
    if os.getppid() != int(parent):
        sys.exit(_CANNOT_START)  # the parent has died in the meantime
    if int(nice):
        yield_to_others(int(nice))
    if cpus:
        os.sched_setaffinity(0, map(int, cpus.split(",")))
    for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored_by_python, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        print(f"cannot start {argv[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(_CANNOT_START)


if __name__ == "__main__":
    _become(*sys.argv[1:])
