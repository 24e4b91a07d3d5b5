"""Processes of a feed server that make one part of an `IterableDataset` each, for as long as a rank reads it."""

from __future__ import annotations

import contextlib
import queue
import socket
import sys
import threading
from collections.abc import Callable
from multiprocessing.process import BaseProcess

from headrace.torch.feed.worker import HANDED_OVER
from headrace.training.handshake import LIMIT_S

MOST = 512
"""At a time; a rank beyond them tries again elsewhere."""
REAP_EVERY_S = 0.5
_Wanted = tuple[socket.socket, int, "queue.SimpleQueue[OSError | None]"]


class StreamProcesses:
    """Starts one for each connection that it is given.

    Args:
        fork: a new process, and the mailbox for its connection.
    """

    def __init__(self, fork: Callable[[int, bool], tuple[BaseProcess, socket.socket]]) -> None:
        self._fork = fork
        self._processes: list[BaseProcess] = []
        self._wanted: queue.SimpleQueue[_Wanted | None] = queue.SimpleQueue()
        # A process ends with the thread that has forked it, so one that lives long forks them all.
        self._thread = threading.Thread(target=self._keep, name="streams", daemon=True)
        self._thread.start()

    def serve(self, connection: socket.socket, loader: int) -> None:
        """Hands the connection over to a new process. Raises `OSError` where there can be none."""
        done: queue.SimpleQueue[OSError | None] = queue.SimpleQueue()
        self._wanted.put((connection, loader, done))
        try:
            problem = done.get(timeout=LIMIT_S)  # a rank waits no longer
        except queue.Empty:
            problem = OSError("no process could be started in time")
        if problem:
            raise problem

    def close(self) -> None:
        """End them all."""
        self._wanted.put(None)
        self._thread.join()

    def _keep(self) -> None:
        while True:
            with contextlib.suppress(queue.Empty):
                wanted = self._wanted.get(timeout=REAP_EVERY_S)
                if wanted is None:
                    break
                connection, loader, done = wanted
                done.put(self._start(connection, loader))
            self._processes = [each for each in self._processes if each.is_alive()]  # which reaps the others
        for process in self._processes:
            process.kill()
            process.join()

    def _start(self, connection: socket.socket, loader: int) -> OSError | None:
        if connection.fileno() < 0:  # nobody waits for it any more: no process is forked for it
            return OSError("the rank has gone")
        if len(self._processes) >= MOST:
            return OSError(f"{MOST} parts are being made already")
        try:
            process, mailbox = self._fork(len(self._processes), True)
            self._processes.append(process)
            with mailbox:
                socket.send_fds(mailbox, [HANDED_OVER.pack(loader)], [connection.fileno()])
        except Exception as error:  # no memory, process or descriptor to be had just now; this thread is to go on
            print(f"a process for a part of the dataset cannot be started: {error!r}", file=sys.stderr)
            return OSError(str(error))
        return None
