"""A feed server: makes batches for ranks, in processes of its own.

    python -m headrace.torch.feed_server --port 6001 --address algo-1:6001 SCRIPT [ARGUMENT ...]

It keeps nothing: an answer follows from the order and the dataset, so another server would give the same. This process
admits connections and hands each to one of its processes; one that dies is started again.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import multiprocessing
import multiprocessing.connection
import multiprocessing.pool
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

from headrace.errors import HeadraceError, InputError
from headrace.events import FEED_READY, say
from headrace.prctl import die_with_parent
from headrace.settings import SECRET_VARIABLE, STALL_TIMEOUT_VARIABLE, OneLineParser
from headrace.torch import connection as wire
from headrace.torch import registry
from headrace.torch.alike import differing
from headrace.torch.feed_process import HANDED_OVER, FeedProcess
from headrace.torch.forking import close_inherited, processes_for, reopen_files
from headrace.torch.run_script import run_until_first_batch
from headrace.training.handshake import LIMIT_S

MOST_AT_THE_DOOR = 256
"""Connections that have not yet proved who they are; further ones are closed."""
SAMPLE_SHARE = 0.8
"""Of `stall_timeout_s`, for one sample: it is to be named before the watchdog ends the job."""
FORK_AGAIN_S = 0.5
SAME = "script, arguments and data must be the same on all hosts; random_split, for one, needs a generator with a seed"


class FeedServer:
    """Admits ranks and hands their connections to processes.

    Args:
        address: HOST:PORT as ranks know it; listens on the port.
        processes: how many make batches; 0: this one does.
    """

    def __init__(self, address: str, port: int, secret: str, loaders: Sequence[Any], processes: int,
                 stall_timeout_s: float) -> None:  # fmt: skip
        self._address, self._secret, self._loaders = address, secret, loaders
        self._count, self._stall_timeout_s, self._port = processes, stall_timeout_s, port
        self._door = threading.Semaphore(MOST_AT_THE_DOOR)
        self._closed = threading.Event()
        self._mailboxes: list[socket.socket] = []
        self._processes: list[multiprocessing.process.BaseProcess] = []
        for number in range(max(processes, 1)):
            self._start(number)
        self._listener = socket.create_server(("0.0.0.0", port), backlog=512, reuse_port=False)
        self.port = self._listener.getsockname()[1]

    def start(self) -> None:
        """Admit ranks, and keep the processes running, until `close`."""
        threading.Thread(target=self._accept, name="accept", daemon=True).start()
        threading.Thread(target=self._keep, name="keep processes", daemon=True).start()

    def wait(self) -> None:
        """Until `close`."""
        self._closed.wait()

    def _keep(self) -> None:
        while not self._closed.is_set():
            multiprocessing.connection.wait([process.sentinel for process in self._processes], FORK_AGAIN_S)
            self._closed.wait(0 if self._processes else FORK_AGAIN_S)
            for number, process in enumerate(self._processes):
                if not process.is_alive():
                    print(f"process {number} ended ({process.exitcode}); another takes its place", file=sys.stderr)
                    try:
                        self._start(number)
                    except OSError as error:  # no memory or no process to be had just now
                        print(f"process {number} cannot be started: {error}", file=sys.stderr)
                        self._closed.wait(FORK_AGAIN_S)

    def close(self) -> None:
        """End the processes, and with them all connections."""
        self._closed.set()
        self._listener.close()
        for process in self._processes:
            process.kill()
            process.join()
        for mailbox in self._mailboxes:
            mailbox.close()

    def _start(self, number: int) -> None:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        served = FeedProcess(
            number, self._count, self._loaders, SAMPLE_SHARE * self._stall_timeout_s, self._stall_timeout_s
        )
        if self._count:
            process = multiprocessing.get_context("fork").Process(
                target=_run, args=(served, there, here, self._port), daemon=True
            )
            process.start()
            there.close()
            self._processes[number : number + 1] = [process]
        else:
            threading.Thread(target=served.run, args=(there,), name="feed", daemon=True).start()
        self._mailboxes[number : number + 1] = [here]

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed, or no descriptor is left
                if self._listener.fileno() < 0:
                    return
                time.sleep(FORK_AGAIN_S)
                continue
            if self._door.acquire(blocking=False):
                threading.Thread(target=self._admit, args=(connection,), name="door", daemon=True).start()
            else:
                connection.close()

    def _admit(self, connection: socket.socket) -> None:
        try:
            with connection:
                wire.HANDSHAKE.admit(connection, self._address, self._secret)
                connection.settimeout(LIMIT_S)
                hello = wire.receive_record(connection)
                loader, slot, problem = self._look_up(hello)
                if not problem:  # before the welcome: a process that has just died is noticed here
                    mailbox = self._mailboxes[slot % len(self._mailboxes)]
                    socket.send_fds(mailbox, [HANDED_OVER.pack(loader)], [connection.fileno()])
                wire.send_record(connection, {"processes": max(self._count, 1), "problem": problem})
        except (OSError, InputError):
            pass  # nobody of ours, or gone again
        finally:
            self._door.release()

    def _look_up(self, hello: Any) -> tuple[int, int, str]:
        """Loader and slot that a rank asks for, and what is wrong with it."""
        if not isinstance(hello, dict) or type(hello.get("loader")) is not int or type(hello.get("slot")) is not int:
            raise InputError("no hello")
        number, about = hello["loader"], hello.get("about")
        if not 0 <= number < len(self._loaders):
            made = f"the script made {len(self._loaders)} loaders before its first batch"
            return 0, 0, f"{made}, and a batch of loader {number + 1} is asked for: make all loaders before that"
        own = self._loaders[number].about()
        if about != own:
            differ = differing(own, about if isinstance(about, dict) else {})
            return 0, 0, f"loader {number + 1} of the script has another dataset on this rank ({differ}): {SAME}"
        return number, hello["slot"], ""


def _run(served: FeedProcess, mailbox: socket.socket, others_end: socket.socket, port: int) -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    registry.Serving.serve = None
    others_end.close()
    close_inherited(port)
    reopen_files()
    served.run(mailbox)


def main(argv: Sequence[str]) -> NoReturn:
    parser = OneLineParser(prog="feed_server", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--address", required=True, metavar="HOST:PORT", help="as ranks know it")
    parser.add_argument("--share", type=int, default=1, help="feed servers that share this host's processors")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    try:
        run_until_first_batch(given.script, given.arguments, functools.partial(_serve, given), _refuse)
    except HeadraceError as error:
        _wait_while_serving()
        _refuse(str(error), error.exit_code)
    except Exception:
        _wait_while_serving()
        print(f"feed server: {given.script} failed here, before its first batch:", file=sys.stderr)
        traceback.print_exc()
        if any(word in traceback.format_exc().lower() for word in ("cuda", "nvidia", "device_ids")):
            print("this host makes batches on its CPU: place models on headrace.torch.device()", file=sys.stderr)
        if registry.OTHER_PROCESS in traceback.format_exc():
            _refuse(registry.OTHER_PROCESS)
    _leave(1)


def _serve(given: argparse.Namespace) -> None:
    """Where the script would take its first batch. Ends the process, and nothing of the script's runs any more."""
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # whatever the script did with them
    try:
        secret = os.environ.get(SECRET_VARIABLE, "")
        if not secret:
            raise InputError(f"{SECRET_VARIABLE} is not set: anyone could ask for batches")
        loaders = registry.loaders
        stall_timeout_s = float(os.environ.get(STALL_TIMEOUT_VARIABLE) or 600)
        processes = processes_for(loaders, given.share)
        server = FeedServer(given.address, given.port, secret, loaders, processes, stall_timeout_s)
    except HeadraceError as error:
        _refuse(str(error), error.exit_code)
    except BaseException:
        traceback.print_exc()
        _leave(1)
    name = os.environ.get("HEADRACE_SERVER_NAME", "worker")
    say(FEED_READY, name=name, address=given.address, loaders=len(loaders), processes=processes)
    server.start()
    try:
        server.wait()
    finally:  # whatever a signal handler of the script's raises: nothing of the script is to be unwound
        _leave(0)


def _wait_while_serving() -> None:
    """The script's main thread has come to its end; one of its threads asked for the first batch, and serves."""
    while registry.is_asked_for():
        time.sleep(FORK_AGAIN_S)


def _refuse(problem: str, code: int = InputError.exit_code) -> NoReturn:
    """Ends the process; by default with the code that says that another attempt would fail as well."""
    print(f"feed server: {problem}", file=sys.stderr, flush=True)
    _leave(code)


def _leave(code: int) -> NoReturn:
    """Without exit handlers, which are the script's."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    # As the module that others import, whose classes are the same ones.
    from headrace.torch import feed_server

    feed_server.main(sys.argv[1:])
