"""Find and end trees of Linux processes, and make forked processes independent of their parent's files and sockets."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import signal
import socket
import stat
import time
from collections.abc import Collection, Iterable, Iterator

import psutil

POLL_S = 0.02
UNKILLABLE_AFTER_S = 10.0
LEFT_GRACE_S = 2.0
"""Seconds between SIGTERM and SIGKILL for processes that a script left running."""


def tree(pid: int) -> list[psutil.Process]:
    """Return a process and all its living descendants; empty if the process is gone."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def descendants() -> list[psutil.Process]:
    """Return all living descendants of this process. Adopted orphans count, zombies do not."""
    return [process for process in psutil.Process().children(recursive=True) if is_alive(process)]


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def is_stopped(pid: int) -> bool:
    """Return whether a process is suspended by a signal."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False


def wait_for_threads(named: str, limit_s: float) -> None:
    """Wait until all threads whose names begin with `named` are asleep at two checks in a row.

    One check is not enough: a thread that waits for Python's global lock also sleeps, but runs before the next check.

    Args:
        named: how the threads' names begin. Only threads of this process count.
        limit_s: longest time to wait, in seconds.
    """
    deadline, calm = time.monotonic() + limit_s, 0
    while calm < 2 and time.monotonic() < deadline:
        states = [state for name, state in _own_threads() if name.startswith(named)]
        if not states:
            return
        time.sleep(POLL_S)
        calm = calm + 1 if set(states) == {"S"} else 0


def _own_threads() -> Iterator[tuple[str, str]]:
    """Yield the name and state of each thread of this process, from /proc (see proc(5): the name is in parentheses)."""
    for number in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{number}/stat", encoding="latin-1") as file:
            name, _, after = file.read().partition("(")[2].rpartition(") ")
            yield name, after[:1]


def signal_all(processes: Iterable[psutil.Process], signum: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError):
            process.send_signal(signum)


def end_all_descendants(grace_s: float, spare: Collection[int] = ()) -> int:
    """Send SIGTERM to every descendant of this process, then SIGKILL after the grace period; wait until all are gone.

    Processes that start meanwhile are ended too. The wait has a limit, since a process in a hung driver or file system
    cannot be killed.

    Args:
        grace_s: seconds between SIGTERM and SIGKILL.
        spare: ids of processes that are left alone.

    Returns:
        The number of processes that were sent SIGKILL.
    """
    deadline, given_up = time.monotonic() + grace_s, math.inf
    asked: set[psutil.Process] = set()
    killed: set[psutil.Process] = set()
    while time.monotonic() < given_up and (
        living := [process for process in descendants() if process.pid not in spare]
    ):
        if time.monotonic() < deadline:
            fresh = [process for process in living if process not in asked]
            signal_all(fresh, signal.SIGTERM)
            # A stopped process handles SIGTERM only when it runs again.
            signal_all(fresh, signal.SIGCONT)
            asked.update(fresh)
        else:
            signal_all(living, signal.SIGKILL)
            killed.update(living)
            given_up = min(given_up, time.monotonic() + UNKILLABLE_AFTER_S)
        reap_orphans()
        time.sleep(POLL_S)
    reap_orphans()
    return len(killed)


def end_children() -> None:
    """End the processes that this program started and left running. Print the command of each.

    Such a process may keep this program's output open. Then a reader of the output would wait for that process. The
    resource tracker of Python's multiprocessing is left alone: it ends by itself.
    """
    own: list[int] = []
    left: dict[int, str] = {}
    for process in descendants():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            command = " ".join(process.cmdline())
            if "resource_tracker import main" in command:
                own.append(process.pid)
            else:
                left[process.pid] = command
    for pid, command in left.items():
        with contextlib.suppress(OSError, ValueError):  # the script may have closed its output
            print(f"ending process {pid}, which the script started and left running: {command[:200]}", flush=True)
    if left:
        end_all_descendants(LEFT_GRACE_S, own)


def reap_orphans() -> None:
    """Reap adopted children that have ended. Children given to `own_child` are left to their `Popen` objects."""
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
            if process.status() == psutil.STATUS_ZOMBIE and process.pid not in _popen_children:
                os.waitpid(process.pid, os.WNOHANG)


_popen_children: set[int] = set()


def own_child(pid: int) -> None:
    """Leave the reaping of `pid` to its `Popen` object, which needs the exit status."""
    _popen_children.add(pid)


def reopen_files() -> None:
    """Give this forked process its own position in each file that is open for reading, by reopening the file.

    Otherwise forked processes share one position in the file, and a read in one process moves it for all.
    """
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            number = int(name)
            flags = fcntl.fcntl(number, fcntl.F_GETFL)
            access = flags & os.O_ACCMODE
            if stat.S_ISREG(os.fstat(number).st_mode) and access != os.O_WRONLY and not flags & os.O_APPEND:
                own = os.open(f"/proc/self/fd/{number}", access | os.O_CLOEXEC)
                os.lseek(own, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
                os.dup2(own, number, inheritable=os.get_inheritable(number))
                os.close(own)


def close_sockets_on(port: int) -> None:
    """Close a server's sockets on `port` in this forked process, so that the port becomes free when the server ends."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as inherited:
                    found = inherited.getsockname()
                if isinstance(found, tuple) and found[1] == port:
                    os.close(int(name))
