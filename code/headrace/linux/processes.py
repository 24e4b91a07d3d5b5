"""Linux process plumbing: whole process trees, their end, their CPU time and memory."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import stat
import time
from collections.abc import Collection, Iterable, Iterator

import psutil

POLL_S = 0.02
UNKILLABLE_AFTER_S = 10.0


def tree(pid: int) -> list[psutil.Process]:
    """A process and all its living descendants; empty when it is gone."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def descendants() -> list[psutil.Process]:
    """All living descendants of this process, adopted orphans included; zombies are left out."""
    return [process for process in psutil.Process().children(recursive=True) if is_alive(process)]


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def is_stopped(pid: int) -> bool:
    """Whether a process is suspended by a signal."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False


def descendants_running(words: str) -> list[psutil.Process]:
    """Living descendants whose command line holds `words`."""
    found = []
    for process in descendants():
        with contextlib.suppress(psutil.NoSuchProcess):
            if words in " ".join(process.cmdline()):
                found.append(process)
    return found


def wait_for_threads(named: str, limit_s: float) -> None:
    """Wait until all of this process's threads whose name begins so were seen asleep twice in turn; never longer.

    Python's lock is free between two looks, so a thread that sleeps only to get it has it by the second.
    """
    deadline, calm = time.monotonic() + limit_s, 0
    while calm < 2 and time.monotonic() < deadline:
        states = [state for name, state in _own_threads() if name.startswith(named)]
        if not states:
            return
        time.sleep(POLL_S)
        calm = calm + 1 if set(states) == {"S"} else 0


def _own_threads() -> Iterator[tuple[str, str]]:
    """Names and states of this process's threads, as Linux has them (proc(5): the name stands in parentheses)."""
    for number in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{number}/stat", encoding="latin-1") as file:
            name, _, after = file.read().partition("(")[2].rpartition(") ")
            yield name, after[:1]


def signal_all(processes: Iterable[psutil.Process], signum: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError):
            process.send_signal(signum)


def end_all_descendants(grace_s: float, spare: Collection[int] = ()) -> int:
    """TERM every descendant of this process, KILL what is left at the deadline, wait until all are gone.

    Processes that are born meanwhile are caught too; pids in `spare` are left alone. What the kernel
    does not let go of (a hung driver or file system) is not waited for for ever. Returns how many had to
    be killed.
    """
    deadline = time.monotonic() + grace_s
    given_up = deadline + UNKILLABLE_AFTER_S
    asked: set[psutil.Process] = set()
    killed: set[psutil.Process] = set()
    while time.monotonic() < given_up and (
        living := [process for process in descendants() if process.pid not in spare]
    ):
        if time.monotonic() < deadline:
            fresh = [process for process in living if process not in asked]
            signal_all(fresh, signal.SIGTERM)
            # A stopped process takes SIGTERM only once it runs again.
            signal_all(fresh, signal.SIGCONT)
            asked.update(fresh)
        else:
            signal_all(living, signal.SIGKILL)
            killed.update(living)
        reap_orphans()
        time.sleep(POLL_S)
    reap_orphans()
    return len(killed)


def end_children(grace_s: float = 2.0) -> None:
    """End what this program has started and left running, and print it.

    It may hold this process's output open, and whoever reads that to its end would wait. Python's own, such as
    multiprocessing's tracker of resources, ends by itself.
    """
    own: list[tuple[int, str]] = []
    left: list[tuple[int, str]] = []
    for process in descendants():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            command = " ".join(process.cmdline())
            (own if "resource_tracker import main" in command else left).append((process.pid, command))
    for pid, command in left:
        with contextlib.suppress(OSError, ValueError):  # the script closed its output
            print(f"ending process {pid}, which the script started and left running: {command[:200]}", flush=True)
    if left:
        end_all_descendants(grace_s, [pid for pid, _ in own])


def reap_orphans() -> None:
    """Collect adopted children that have ended. Children of `subprocess` are reaped by their owners."""
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
            if process.status() == psutil.STATUS_ZOMBIE and not _is_popen_child(process.pid):
                os.waitpid(process.pid, os.WNOHANG)


_popen_children: set[int] = set()


def own_child(pid: int) -> None:
    """Leave `pid` to its `Popen` object: it must not be reaped behind its back."""
    _popen_children.add(pid)


def _is_popen_child(pid: int) -> bool:
    return pid in _popen_children


def cpu_seconds(process: psutil.Process) -> float:
    """User and system CPU seconds of one process, zero once it is gone."""
    try:
        times = process.cpu_times()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0.0
    return float(times.user + times.system)


def resident_bytes(process: psutil.Process) -> int:
    """The memory that a process holds, zero once it is gone."""
    try:
        return int(process.memory_info().rss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0


def reopen_files() -> None:
    """Give a forked process its own position in each file that was open for reading: the processes share one.

    A script may open its file once and read it in one process; several would move each other's position.
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
    """Close the sockets of a server on this port in a process that was forked from it, where they would outlive it."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as inherited:
                    found = inherited.getsockname()
                if isinstance(found, tuple) and found[1] == port:
                    os.close(int(name))
