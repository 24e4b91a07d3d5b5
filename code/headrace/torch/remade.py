"""Whether a batch of a feed server's is the one that this script would make now.

Feed servers have a copy of the script's dataset, as it was before the first batch. What the script changes later, and
no attribute tells (`changed.refuse_changes`), would stay as it was in all batches, and nothing would fail: a global
model, a table that a function reads. So now and then a forked process makes a batch once more, and warns where it
differs. It does not end the job: a dataset may also hold what nobody seeds, as the time or a number of the system's.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import os
import resource
import signal
import stat
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from headrace.prctl import die_with_parent
from headrace.torch import distributed as world
from headrace.torch.dataset_epochs import forget_epochs
from headrace.torch.feed.client import Feed
from headrace.torch.feed.encode import encode
from headrace.torch.fetch.map_fetcher import Made, Order
from headrace.torch.forking import as_worker, outside_of_blocks, reopen_files
from headrace.torch.registry import WITHOUT_DATA_HOSTS
from headrace.training import step_cpu
from headrace.training.step_cpu import with_ended_s

EVERY_S = 60.0
"""Looked this often, and at a loader's 1st, 2nd, 4th, 8th … iteration."""
FORK_SHARE = 0.01
"""Of the time, at most, that it takes to fork a process of much memory, and to wait for one."""
LONGEST_S, AT_END_S = 120, 5.0
"""That the forked process may take, and that an iteration's end waits for it."""
TOLERANCE = 0.01
"""Of the largest number of a tensor: other processors round otherwise."""
_SAME, _DIFFERS, _UNKNOWN = range(3)
"""What the forked process ends with."""
_MOST_NAMED, _ATTEMPTS = 3, 4


class Remade:
    """The batches that feed servers make for one iteration; the first may be made once more.

    Args:
        source: hands them out.
        order: what makes the order of a step.
    """

    def __init__(self, loader: Any, source: Feed, order: Callable[[int], Order]) -> None:
        self._loader, self._source, self._order, self._looked = loader, source, order, False

    def next(self) -> Made:
        """The next step's batch. Raises what the source does."""
        made = self._source.next()
        if not self._looked:
            self._looked = True
            _looks[self._loader.number].begin(self._loader, self._order(0), made)
        return made

    def close(self) -> None:
        self._source.close()
        _looks[self._loader.number].end()


class _Looks:
    """Those at one loader, which a script may make anew for each epoch."""

    def __init__(self) -> None:
        self._iterations = self._pid = 0
        self._told, self._next_at, self._ended_s = False, 0.0, 0.0
        atexit.register(self.end)

    def begin(self, loader: Any, order: Order, made: Made) -> None:
        self._iterations += 1
        self._gather()
        now = time.monotonic()
        wanted = self._iterations & (self._iterations - 1) == 0 or now > self._next_at
        if self._told or self._pid or made.skipped or not wanted or _holds_rdma():
            return
        with contextlib.suppress(Exception), warnings.catch_warnings():  # no process to be had; a type's own errors
            theirs = pytree.tree_map_only(torch.Tensor, _unpinned, made.batch)
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads that the forked process has not
            self._pid = os.fork()
            if not self._pid:
                _make_and_leave(loader, order, theirs)
        self._next_at = now + max(EVERY_S, (time.monotonic() - now) / FORK_SHARE)

    def look_soon(self) -> None:
        """Whatever the time, at the next iteration."""
        self._next_at = 0.0

    def _gather(self) -> None:
        try:
            pid, status, used = os.wait4(self._pid, os.WNOHANG) if self._pid else (0, 0, None)
        except ChildProcessError:  # the script waits for all processes itself
            self._pid = 0
            return
        if pid and used:
            self._told |= status == _DIFFERS << 8
            self._pid, self._ended_s = 0, self._ended_s + used.ru_utime + used.ru_stime

    def cpu_s(self) -> float:
        """CPU seconds of all processes so far."""
        return self._ended_s + (with_ended_s(self._pid) if self._pid else 0.0)

    def end(self) -> None:
        """The iteration is over: the script may now remove or close what samples are made of. Leaves no process."""
        if not self._pid:
            return
        began = time.monotonic()
        while self._pid and time.monotonic() < began + AT_END_S:
            self._gather()
            time.sleep(0.01)
        if self._pid:
            with contextlib.suppress(OSError):
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
            self._pid = 0
        now = time.monotonic()
        self._next_at = max(self._next_at, now + (now - began) / FORK_SHARE)


_looks: collections.defaultdict[int, _Looks] = collections.defaultdict(_Looks)


def look_soon(loader: int, noted: Sequence[str]) -> None:
    """The script has changed these attributes of its dataset, of which no sample is made as far as its code tells."""
    if world.rank() == 0:
        print(
            f"loader {loader + 1}: data hosts do not see what the script has changed of the dataset since the first "
            f"batch ({', '.join(noted[:5])}); no code that makes samples names it",
            flush=True,
        )
    _looks[loader].look_soon()


step_cpu.aside.append(lambda: sum(each.cpu_s() for each in list(_looks.values())))


def _unpinned(tensor: torch.Tensor) -> torch.Tensor:
    """In memory that a forked process has too."""
    return tensor.clone() if tensor.is_pinned() else tensor


def _make_and_leave(loader: Any, order: Order, theirs: Any) -> None:
    """In the forked process; does not return."""
    outcome = _UNKNOWN
    with contextlib.suppress(BaseException):  # what lies on data hosts alone cannot be read here, for one
        log = _as_a_process_apart()
        with outside_of_blocks():
            once = _attempt(loader, 0, order)
            if not (names := differing(theirs, once.batch)):
                outcome = _SAME
            elif not once.skipped and not any(
                differing(once.batch, _attempt(loader, number, order).batch) for number in range(1, _ATTEMPTS)
            ):
                os.write(log, _warning(loader.number, order.epoch, names).encode())
                outcome = _DIFFERS
    os._exit(outcome)


def _attempt(loader: Any, number: int, order: Order) -> Made:
    """As another worker process, which is told of the epoch anew: a dataset may draw from the seed of its worker."""
    forget_epochs()
    return as_worker(loader, number, _ATTEMPTS).make(order)  # type: ignore[no-any-return]


def _warning(loader: int, epoch: int, names: list[str]) -> str:
    return (
        f"warning: data hosts make other batches than this script would make now: rank {world.rank()} made one once "
        f"more (loader {loader + 1}, epoch {epoch}; other: {', '.join(names)}). Something that samples or collate_fn "
        "are made of has changed since the first batch, differs between hosts, or was drawn and kept. Data hosts do "
        f"not see a change: hold it in the dataset and change it in its set_epoch(epoch), or {WITHOUT_DATA_HOSTS}\n"
    )


def differing(one: Any, other: Any) -> list[str]:
    """Which parts of two batches differ, by the way to each, the first few; empty: both are the same."""
    if encode(one) == encode(other):
        return []
    parts, others = (pytree.tree_flatten_with_path(each)[0] for each in (one, other))
    if [path for path, _ in parts] != [path for path, _ in others]:
        return ["its parts"]
    found = [path for (path, one), (_, other) in zip(parts, others, strict=True) if not _about_equal(one, other)]
    return [pytree.keystr(path) or "the batch" for path in found[:_MOST_NAMED]]


def _about_equal(one: Any, other: Any) -> bool:
    one, other = (torch.from_numpy(each) if isinstance(each, np.ndarray) and each.dtype.kind in "biufc" else each
                  for each in (one, other))  # fmt: skip
    if isinstance(one, float) and isinstance(other, float):
        one, other = torch.tensor(one), torch.tensor(other)
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return encode(one) == encode(other)
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    if one.is_complex():
        one, other = torch.view_as_real(one.detach()), torch.view_as_real(other.detach())
    if one.dtype == torch.uint8:  # pixels
        return not one.numel() or int((one.int() - other.int()).abs().max()) <= 1
    if not one.is_floating_point() or not one.numel():
        return torch.equal(one, other)
    one, other = one.detach().double(), other.detach().double()
    largest = float(other.nan_to_num(0, 0, 0).abs().max())
    return torch.allclose(one, other, rtol=0, atol=TOLERANCE * largest, equal_nan=True)


def _as_a_process_apart() -> int:
    """Take nothing of the rank's with it, and keep out of its way; a descriptor for what is to be said."""
    die_with_parent()
    for each in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(each, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.alarm(LONGEST_S)  # whatever a lock may wait for whose thread is not here
    os.nice(19)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    log = os.dup(1)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            kind = os.fstat(int(name)).st_mode
            if int(name) != log and (stat.S_ISSOCK(kind) or stat.S_ISFIFO(kind)):
                os.close(int(name))  # what the rank closes is to be closed
    reopen_files()
    # As in torch's own loader processes: the threads of its pool are not here.
    torch.set_num_threads(1)
    return log


def _holds_rdma() -> bool:
    """Whether this process has opened EFA or InfiniBand: libfabric ends a process that is forked then."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("/dev/infiniband"):
                return True
    return False
