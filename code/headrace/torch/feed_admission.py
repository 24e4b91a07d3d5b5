"""Admits ranks to a feed server and hands each connection to one of its processes; one that dies is started again.

It keeps nothing: an answer follows from the order and the dataset, so another server would give the same.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from headrace.errors import InputError
from headrace.torch.feed import protocol as wire
from headrace.torch.feed.worker import HANDED_OVER, FeedProcess
from headrace.torch.forking import begin_forked
from headrace.torch.sampling.rank_agreement import SPLIT_HINT, differing
from headrace.torch.stream_processes import StreamProcesses
from headrace.training.handshake import LIMIT_S

MOST_AT_THE_DOOR = 256
"""Connections that have not yet proved who they are; of more, the one that waits longest is closed."""
SAMPLE_SHARE = 0.8
"""Of `stall_timeout_s`, for one sample: it is to be named before the watchdog ends the job."""
FORK_AGAIN_S = LOOK_UP_S = 0.5
SAME = (
    f"script, arguments and data must be the same on all hosts; {SPLIT_HINT}; and a data host runs the script as the "
    "only rank: what the world size, the rank or a broadcast changes is another dataset there"
)


class FeedServer:
    """Admits ranks and hands their connections to processes.

    Args:
        address: HOST:PORT as ranks know it; listens on the port.
        processes: how many make batches; 0: this one does.
    """

    def __init__(self, address: str, port: int, secret: str, loaders: Sequence[Any], processes: int,
                 stall_timeout_s: float) -> None:  # fmt: skip
        self._address, self._secret, self._loaders = address, secret, loaders
        for loader in loaders:
            loader.note_dataset()
        self._count, self._stall_timeout_s, self._port = processes, stall_timeout_s, port
        self._door: dict[socket.socket, None] = {}
        """Connections that have not proved who they are, the oldest first."""
        self._door_lock = threading.Lock()
        self._closed = threading.Event()
        self._mailboxes: list[socket.socket] = []
        self._processes: list[multiprocessing.process.BaseProcess] = []
        for number in range(max(processes, 1)):
            self._start(number)
        self._streams = StreamProcesses(self._fork) if processes else None
        self._listener = socket.create_server(("0.0.0.0", port), backlog=512, reuse_port=False)
        self.port = self._listener.getsockname()[1]

    def start(self) -> None:
        """Admit ranks, and keep the processes running, until `close`."""
        threading.Thread(target=self._accept, name="accept", daemon=True).start()
        threading.Thread(target=self._keep, name="keep processes", daemon=True).start()

    def wait(self) -> None:
        """Until `close`. Looks up now and then: a signal that Linux gives to another thread wakes nobody here."""
        while not self._closed.wait(LOOK_UP_S):
            pass

    def _keep(self) -> None:
        while not self._closed.is_set():
            multiprocessing.connection.wait([process.sentinel for process in self._processes], FORK_AGAIN_S)
            self._closed.wait(0 if self._processes else FORK_AGAIN_S)
            for number, process in enumerate(self._processes):
                if not process.is_alive() and not self._closed.is_set():
                    print(f"process {number} ended ({process.exitcode}); another takes its place", file=sys.stderr)
                    try:
                        self._start(number)
                    except OSError as error:  # no memory or no process to be had just now
                        print(f"process {number} cannot be started: {error}", file=sys.stderr)
                        self._closed.wait(FORK_AGAIN_S)

    def close(self) -> None:
        """End the processes, and with them all connections."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes its thread
        self._listener.close()
        if self._streams:
            self._streams.close()
        for process in self._processes:
            process.kill()
            process.join()
        for mailbox in self._mailboxes:
            mailbox.close()

    def _start(self, number: int) -> None:
        if self._count:
            process, here = self._fork(number)
            self._processes[number : number + 1] = [process]
        else:
            here, there = _pair()
            threading.Thread(target=self._served(number).run, args=(there,), name="feed", daemon=True).start()
        self._mailboxes[number : number + 1] = [here]

    def _served(self, number: int) -> FeedProcess:
        limit_s = SAMPLE_SHARE * self._stall_timeout_s
        return FeedProcess(number, self._count, self._loaders, limit_s, self._stall_timeout_s)

    def _fork(self, number: int, of_one: bool = False) -> tuple[multiprocessing.process.BaseProcess, socket.socket]:
        """A process, and the mailbox for its connections. The calling thread must live as long as it."""
        here, there = _pair()
        arguments = (self._served(number), there, here, self._port, of_one)
        process = multiprocessing.get_context("fork").Process(target=_run, args=arguments, daemon=True)
        process.start()
        there.close()
        return process, here

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed, or no descriptor is left
                if self._listener.fileno() < 0:
                    return
                time.sleep(FORK_AGAIN_S)
                continue
            self._come_in(connection)
            try:
                threading.Thread(target=self._admit, args=(connection,), name="door", daemon=True).start()
            except RuntimeError:  # no thread is to be had just now; whoever it is asks again
                self._leave_the_door(connection)
                connection.close()
                time.sleep(FORK_AGAIN_S)

    def _come_in(self, connection: socket.socket) -> None:
        """A rank proves itself within milliseconds: where there are too many, whoever waits longest is none."""
        with self._door_lock:
            if len(self._door) >= MOST_AT_THE_DOOR:
                oldest = next(iter(self._door))
                del self._door[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # wakes its thread
            self._door[connection] = None

    def _leave_the_door(self, connection: socket.socket) -> None:
        with self._door_lock:
            self._door.pop(connection, None)

    def _admit(self, connection: socket.socket) -> None:
        try:
            with connection:
                wire.HANDSHAKE.admit(connection, self._address, self._secret)
                self._leave_the_door(connection)
                connection.settimeout(LIMIT_S)
                hello = wire.receive_record(connection)
                loader, slot, problem = self._look_up(hello)
                if not problem:  # before the welcome: a process that has just died is noticed here
                    self._hand_over(connection, loader, slot)
                wire.send_record(connection, {"processes": max(self._count, 1), "problem": problem})
        except (OSError, InputError):
            pass  # nobody of ours, or gone again
        finally:
            self._leave_the_door(connection)

    def _hand_over(self, connection: socket.socket, loader: int, slot: int) -> None:
        """Raises `OSError`: whom it was meant for has just died."""
        if self._streams and self._loaders[loader].is_stream:
            self._streams.serve(connection, loader)
        else:
            mailbox = self._mailboxes[slot % len(self._mailboxes)]
            socket.send_fds(mailbox, [HANDED_OVER.pack(loader)], [connection.fileno()])

    def _look_up(self, hello: Any) -> tuple[int, int, str]:
        """Loader and slot that a rank asks for, and what is wrong with it."""
        if not isinstance(hello, dict) or type(hello.get("loader")) is not int or type(hello.get("slot")) is not int:
            raise InputError("no hello")
        number, about = hello["loader"], hello.get("about")
        if not 0 <= number < len(self._loaders):
            made = f"the script made {len(self._loaders)} loaders before its first batch"
            return 0, 0, f"{made}, and a batch of loader {number + 1} is asked for: make all loaders before that"
        own = self._loaders[number].about()
        if about != own and (differ := differing(own, about if isinstance(about, dict) else {})):
            return 0, 0, f"loader {number + 1} of the script has another dataset on this rank ({differ}): {SAME}"
        return number, hello["slot"], ""


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _run(served: FeedProcess, mailbox: socket.socket, others_end: socket.socket, port: int, of_one: bool) -> None:
    others_end.close()
    begin_forked(port)
    served.run(mailbox, of_one)
    if of_one:
        os._exit(0)  # whatever threads the dataset has
