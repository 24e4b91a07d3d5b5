"""The ranks that run on this host: which are suspended, and what all their threads are doing."""

from __future__ import annotations

import contextlib
import signal

import psutil

from headrace.host.log import HostLog
from headrace.host.mpi import mpirun
from headrace.linux.processes import descendants_running, is_stopped, signal_all


def rank_processes() -> dict[str, psutil.Process]:
    """The ranks that run on this host, by name."""
    found: dict[str, psutil.Process] = {}
    for process in descendants_running(mpirun.RANK_MODULE):
        with contextlib.suppress(psutil.NoSuchProcess):
            number = process.environ().get("OMPI_COMM_WORLD_RANK")
            if number is not None:  # mpirun has the words in its command line too
                found.setdefault(f"rank{number}", process)  # and not what it has forked since: parents come first
    return found


def suspended_ranks() -> list[str]:
    """The ranks of this host that something has stopped (SIGSTOP)."""
    return [name for name, process in rank_processes().items() if is_stopped(process.pid)]


def dump_ranks(log: HostLog) -> None:
    """Have every rank of this host print the stacks of all its threads (see `headrace.rank`)."""
    ranks = list(rank_processes().values())
    log.say(f"stacks of {len(ranks)} ranks follow")
    signal_all(ranks, signal.SIGUSR1)
    signal_all(ranks, signal.SIGCONT)  # a suspended rank prints its stacks only once it runs
