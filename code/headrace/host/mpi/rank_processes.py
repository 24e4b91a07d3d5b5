"""Find the ranks that run on this host, find those that are suspended, make all of the host's ranks print stacks."""

from __future__ import annotations

import contextlib
import signal

import psutil

from headrace.host.log import HostLog
from headrace.host.mpi import mpirun
from headrace.linux.processes import descendants, is_stopped, signal_all


def rank_processes() -> dict[str, psutil.Process]:
    """Return the ranks that run on this host, by name."""
    found: dict[str, psutil.Process] = {}
    for process in descendants():
        with contextlib.suppress(psutil.NoSuchProcess):
            # mpirun has the module in its command line too, but is no rank.
            number = process.environ().get("OMPI_COMM_WORLD_RANK") if mpirun.RANK_MODULE in process.cmdline() else None
            if number is not None:
                found.setdefault(f"rank{number}", process)  # keeps the rank, not its forks: parents come first
    return found


def suspended_ranks() -> list[str]:
    """Return the names of this host's ranks that are suspended (SIGSTOP)."""
    return [name for name, process in rank_processes().items() if is_stopped(process.pid)]


def dump_ranks(log: HostLog) -> None:
    """Make every rank of this host print the stacks of all its threads (see `headrace.rank`)."""
    ranks = list(rank_processes().values())
    log.say(f"stacks of {len(ranks)} ranks follow")
    signal_all(ranks, signal.SIGUSR1)
    signal_all(ranks, signal.SIGCONT)  # a suspended rank prints its stacks only once it runs
