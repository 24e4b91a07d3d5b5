"""A feed server's processes are forked: how many there are, and what a forked one must not share with the others."""

from __future__ import annotations

import concurrent.futures
import contextlib
import fcntl
import multiprocessing.connection
import multiprocessing.pool
import os
import secrets
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset, _utils

from headrace.prctl import die_with_parent
from headrace.torch import registry
from headrace.torch.dataset_code import is_the_scripts
from headrace.torch.fetch.rng import seed_all
from headrace.torch.held import held

DEEPEST = 4
"""Of datasets within datasets."""
_handle = signal.signal
"""Python's own: that of a script is kept from changing what ends a server (`run_script.keep_handler`)."""
_ONE_PROCESS = (multiprocessing.pool.ThreadPool, subprocess.Popen, socket.socket, multiprocessing.connection.Connection)


def processes_for(loaders: Sequence[Any], share: int) -> int:
    """How many processes make the batches of these loaders; 0: the server itself, in a thread.

    Args:
        share: feed servers that share this host's processors.
    """
    wanted = [loader.num_workers for loader in loaders]
    if all(wanted):
        return int(max(wanted))
    if any(is_for_one_process(loader.dataset) or _holds_connection(loader) for loader in loaders):
        print("the dataset has threads, which a forked process would not have, or a process or connection, which "
              "several would share: one process makes the batches; num_workers=1 or more, as torch has it, forks "
              "all the same", file=sys.stderr, flush=True)  # fmt: skip
        return 0
    return max(len(os.sched_getaffinity(0)) // share, *wanted, 1)


@contextlib.contextmanager
def outside_of_blocks() -> Iterator[None]:
    """As if the script were in no block of torch's: a forked process has for ever what surrounds the first batch."""
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
        yield


def is_for_one_process(dataset: Any, depth: int = 0) -> bool:
    """Whether the dataset keeps threads, or talks to a process or host, in its attributes, or datasets within do."""
    if isinstance(dataset, concurrent.futures.ThreadPoolExecutor):
        return bool(dataset._threads)  # it starts them when they are used
    if isinstance(dataset, threading.Thread):
        return dataset.is_alive()
    if isinstance(dataset, _ONE_PROCESS):
        return True
    own = isinstance(dataset, Dataset) or is_the_scripts(type(dataset))
    inside = vars(dataset).values() if own and hasattr(dataset, "__dict__") else ()
    return depth < DEEPEST and any(is_for_one_process(each, depth + 1) for each in inside)


def _holds_connection(loader: Any) -> bool:
    """Whether a library's object has one open, as the session of `requests` and boto3's clients after a first use.

    Two processes that read from one connection get each other's answers.
    """
    return any(_is_connection(each) for _, each in held(loader.dataset, loader.collate_fn))


def _is_connection(value: Any) -> bool:
    """Whether it is one to an address, or stands for one, as a database's own object does."""
    if not callable(getattr(type(value), "fileno", None)):
        return False
    try:
        if not stat.S_ISSOCK(os.fstat(value.fileno()).st_mode):
            return False
        with socket.socket(fileno=os.dup(value.fileno())) as same:
            same.getpeername()
            return same.family in (socket.AF_INET, socket.AF_INET6)
    except Exception:  # a file, nothing open, or whatever the object does when it is asked
        return False


def begin_forked(port: int) -> None:
    """To be called first in a forked process of a server that listens on this port."""
    die_with_parent()
    _handle(signal.SIGINT, signal.SIG_IGN)
    _handle(signal.SIGTERM, signal.SIG_DFL)
    registry.Serving.serve = None
    close_inherited(port)
    reopen_files()


def as_worker(loader: Any, number: int, count: int) -> Any:
    """The loader's maker, for a process that is, to the dataset, this one of so many worker processes of torch's."""
    # As in torch's own, another in each process: worker_init_fn seeds the dataset's generators from it.
    own_seed = secrets.randbits(63)
    seed_all(own_seed)
    # What `torch.utils.data.get_worker_info` tells a dataset.
    _utils.worker._worker_info = _utils.worker.WorkerInfo(
        id=number, num_workers=max(count, 1), seed=own_seed, dataset=loader.dataset
    )
    if loader.worker_init_fn:
        loader.worker_init_fn(number)
    return loader.maker()


def close_inherited(port: int) -> None:
    """Close what a forked process has of the listener and of others' connections, which would outlive their owner."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                inherited = socket.socket(fileno=os.dup(int(name)))
                with inherited:
                    found = inherited.getsockname()
                if isinstance(found, tuple) and found[1] == port:
                    os.close(int(name))


def reopen_files() -> None:
    """Give this process a place of its own in each file that was open for reading: forked ones share it.

    A script opens its file once and reads in one process (`num_workers=0`); here several would move each other's place.
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
