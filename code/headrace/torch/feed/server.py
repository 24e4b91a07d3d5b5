"""A feed server: its worker processes make batches for ranks.

    python -m headrace.torch.feed.server --port 6001 --address algo-1:6001 SCRIPT [ARGUMENT ...]

The server runs the script up to its first batch, forks workers that have the script's datasets, authenticates ranks,
and hands each connection to a worker. A batch depends only on the request and the dataset, not on the server.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn

from headrace.errors import HeadraceError, InputError
from headrace.events import FEED_READY, say
from headrace.frameworks.pytorch_jobs import PORT_IN_USE
from headrace.job.settings import SECRET_VARIABLE, STALL_TIMEOUT_VARIABLE
from headrace.terminal.parser import OneLineParser
from headrace.torch.feed import protocol, script
from headrace.torch.feed.worker import Worker
from headrace.torch.sampling.rank_agreement import differences
from headrace.training.handshake import LIMIT_S

SAMPLE_SHARE = 0.8
"""Largest share of `stall_timeout_s` that a batch may take. The server must report a hang before the watchdog acts."""
ALONE = (
    "(on a data host the script runs as rank 0 of 1, without a GPU: use headrace.torch.init() and "
    "headrace.torch.device(), and if headrace.torch.is_feed_server() is true, skip what only ranks should do)"
)
ACCEPT_AGAIN_S = FORK_AGAIN_S = LOOK_EVERY_S = 0.5
SAME = (
    "script, arguments and data must be the same on all hosts. On a data host the script runs as rank 0 of 1, so the "
    "dataset must not depend on the world size, the rank or a broadcast"
)


class FeedServer:
    """Authenticates ranks and hands their connections to workers.

    Args:
        address: HOST:PORT under which ranks reach the server.
        port: port to listen on; 0: any free port.
        processes: number of workers.
    """

    def __init__(self, address: str, port: int, secret: str, processes: int, stall_timeout_s: float) -> None:
        self._address, self._port, self._secret = address, port, secret
        self._pool = WorkerPool(processes, stall_timeout_s)
        self._loaders: Mapping[str, Any] = {}
        self._wanted: set[str] = set()
        """Loaders that ranks have asked for and the script has not made yet."""
        self._for_good = False
        self._listener: socket.socket | None = None

    # The script's thread runs these methods.

    def start(self, loaders: Mapping[str, Any]) -> None:
        """Begin to serve these loaders. If a loader is new, fork all workers again. The first call opens the port."""
        if loaders.keys() != self._loaders.keys():
            for loader in loaders.values():
                _ = loader.config  # the first read fixes the configuration
            self._pool.fork(loaders)
            self._loaders = loaders
        self._pool.at_rest.set()
        if self._listener is not None:
            return
        self._listener = socket.create_server(("0.0.0.0", self._port), backlog=512, reuse_port=False)
        self._pool.port = self._listener.getsockname()[1]
        threading.Thread(target=self._pool.keep, name="keep workers", daemon=True).start()
        threading.Thread(target=self._accept, args=(self._listener,), name="accept", daemon=True).start()
        name = os.environ.get("HEADRACE_SERVER_NAME", "worker")
        say(FEED_READY, name=name, address=self._address, loaders=len(self._loaders), processes=self._pool.count)

    def serve(self, loaders: Mapping[str, Any]) -> None:
        """Serve these loaders until a rank asks for a loader that is not among them."""
        self.start(loaders)
        while self._wanted <= loaders.keys():
            time.sleep(LOOK_EVERY_S)
        self._pool.at_rest.clear()
        wanted = ", ".join(self._wanted - loaders.keys())
        print(f"this host's script continues, since a rank asks for loader {wanted}, which is not made yet", flush=True)

    def serve_for_good(self) -> NoReturn:
        """Serve the loaders that the script has made so far. The script does not continue."""
        self._for_good = True
        self._pool.at_rest.set()
        while not self._pool.closed.wait(LOOK_EVERY_S):
            pass
        raise SystemExit(0)

    # The server's own threads run these methods, except `close`.

    def close(self) -> None:
        """End the workers, and with them all connections."""
        if self._listener is not None:
            protocol.end(self._listener)  # wakes the thread that accepts
            self._listener.close()
        self._pool.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # closed, or no descriptor is free
                if listener.fileno() < 0:
                    return
                time.sleep(ACCEPT_AGAIN_S)
                continue
            try:
                threading.Thread(target=self._admit, args=(connection,), name="admit", daemon=True).start()
            except RuntimeError:  # no thread can be started now; a rank tries again
                connection.close()
                time.sleep(ACCEPT_AGAIN_S)

    def _admit(self, connection: socket.socket) -> None:
        try:
            with connection:
                protocol.HANDSHAKE.admit(connection, self._address, self._secret)
                connection.settimeout(LIMIT_S)
                hello = protocol.receive_record(connection)
                answer = self._answer(hello)
                if not answer and not hello.get("probe"):  # reply after `hand_over`: it raises if the worker died
                    self._pool.hand_over(connection, hello["loader"], hello["slot"])
                protocol.send_record(connection, {"processes": self._pool.count, "problem": "", **answer})
        except (OSError, InputError):
            pass  # not a rank of this job, or it has gone

    def _answer(self, hello: Any) -> dict[str, Any]:
        """Return {} to admit a rank, or the reason to refuse the rank. Raises `InputError` if `hello` is malformed."""
        if not isinstance(hello, dict) or type(hello.get("loader")) is not str or type(hello.get("slot")) is not int:
            raise InputError("not a hello")
        key, config, loaders = hello["loader"], hello.get("config"), self._loaders
        if key not in loaders:
            if self._for_good or not hello.get("late"):
                return {"unknown": "for good"}
            self._wanted.add(key)
            return {"unknown": "for now"}
        if told := differences(loaders[key].config, config if isinstance(config, dict) else {}, "the rank"):
            return {"problem": f"the script's loader {key} differs between feed server and rank: {told}; {SAME}"}
        return {}


class WorkerPool:
    """The `count` workers of a server, forked from the process that ran the script. A worker that ends is replaced."""

    def __init__(self, count: int, stall_timeout_s: float) -> None:
        self.count, self._stall_timeout_s = count, stall_timeout_s
        self.port = 0
        """The server's port. A forked worker closes the sockets on this port that the worker has inherited."""
        self.at_rest = threading.Event()
        """Event that is set while the script does not run. Only then can workers be forked."""
        self._loaders: Mapping[str, Any] = {}
        self._lock = threading.Lock()
        self.closed = threading.Event()
        self._workers: dict[int, tuple[BaseProcess, socket.socket]] = {}
        """Maps each worker's number to the worker's process and to the socket that passes connections to the worker."""

    def fork(self, loaders: Mapping[str, Any]) -> None:
        """Start new workers with these loaders and their datasets as they are now. End the earlier workers."""
        with self._lock:
            self._loaders = loaders
            for number in range(self.count):
                self._replace(number)

    def hand_over(self, connection: socket.socket, key: str, slot: int) -> None:
        """Hand a rank's connection to the worker that `slot` selects. Raises `OSError` if the worker has just died."""
        with self._lock:
            _, mailbox = self._workers[slot % self.count]
            socket.send_fds(mailbox, [key.encode()], [connection.fileno()])

    def close(self) -> None:
        """End the workers, and with them all connections."""
        self.closed.set()
        with self._lock:
            for each in self._workers.values():
                _end(*each)

    def _replace(self, number: int) -> None:
        """Fork a worker that dies with this thread, then end the old worker. The old worker's ranks connect again."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        limit_s = SAMPLE_SHARE * self._stall_timeout_s
        worker = Worker(number, self.count, self._loaders, limit_s, self._stall_timeout_s)
        process = multiprocessing.get_context("fork").Process(target=worker.run, args=(there, self.port), daemon=True)
        process.start()
        there.close()
        before = self._workers.get(number)
        self._workers[number] = process, here
        if before:
            _end(*before)

    def keep(self) -> None:
        """Fork another worker for each one that ends, until the pool closes."""
        while not self.closed.is_set():
            with self._lock:
                workers = list(self._workers.values())
            multiprocessing.connection.wait([process.sentinel for process, _ in workers], FORK_AGAIN_S)
            if not (self.at_rest.is_set() and self._replace_ended()):
                self.closed.wait(FORK_AGAIN_S)

    def _replace_ended(self) -> bool:
        """Fork a worker in place of each one that has ended. Return False if one could not be started."""
        with self._lock:
            for number, (process, _) in self._workers.items():
                if process.is_alive() or self.closed.is_set():
                    continue
                print(f"worker {number} ended (code {process.exitcode}); starting another", file=sys.stderr, flush=True)
                try:
                    self._replace(number)
                except OSError as error:  # no memory or no process is free
                    print(f"worker {number} cannot be started: {error}; retrying", file=sys.stderr, flush=True)
                    return False
        return True


def _end(process: BaseProcess, mailbox: socket.socket) -> None:
    process.kill()
    process.join()
    mailbox.close()


def main(argv: Sequence[str]) -> NoReturn:
    parser = OneLineParser(prog="feed_server", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--address", required=True, metavar="HOST:PORT", help="address where ranks reach this server")
    parser.add_argument("--share", type=int, default=1, help="number of feed servers that share this host's processors")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args(argv)
    _end_on_term()
    secret = os.environ.get(SECRET_VARIABLE, "")
    if not secret:
        _refuse(f"{SECRET_VARIABLE} is not set, so anyone could ask for batches: set it")
    processes = max(len(os.sched_getaffinity(0)) // given.share, 1)
    stall_timeout_s = float(os.environ.get(STALL_TIMEOUT_VARIABLE) or 600)
    server = _Serving(given.address, given.port, secret, processes, stall_timeout_s)
    try:
        script.run_until_first_batch(given.script, given.arguments, server, processes)
    except HeadraceError as error:
        server.go_on_without(str(error))
        _refuse(str(error), error.exit_code)
    except Exception as error:
        server.go_on_without(f"{type(error).__name__}: {error}")
        traceback.print_exc()
        if isinstance(error, OSError) and error.errno != errno.EADDRINUSE:
            _leave(1)  # another attempt may succeed
        problem = f"{error} ({PORT_IN_USE})" if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        _refuse(f"{given.script} fails on a data host, before its first batch: {problem} {ALONE}")


class _Serving(FeedServer):
    """The feed server of this process. An error in the server ends the process without unwinding the script's stack.

    Unwinding would close the script's files, delete its temporary folders and run its `finally` blocks.
    """

    def serve(self, loaders: Mapping[str, Any]) -> None:
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # the script may have replaced them
        _end_on_term()
        try:
            super().serve(loaders)
        except HeadraceError as error:
            _refuse(str(error), error.exit_code)
        except BaseException:
            traceback.print_exc()
            _leave(1)

    def go_on_without(self, problem: str) -> None:
        """If `problem` ended the script after the first batch, print `problem` and keep serving; otherwise return."""
        while script.serving.locked():
            time.sleep(LOOK_EVERY_S)
        if self._listener is not None:
            print(f"the script ended: {problem}. Loaders that the script has made are still served", flush=True)
            self.serve_for_good()


def _end_on_term() -> None:
    with contextlib.suppress(ValueError):  # a script may take batches in a thread, where handlers cannot be set
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))


def _refuse(problem: str, code: int = InputError.exit_code) -> NoReturn:
    """Print a problem and end the process. The default exit code means that another attempt would fail as well."""
    print(f"feed server: {problem}", file=sys.stderr, flush=True)
    _leave(code)


def _leave(code: int) -> NoReturn:
    """End the process without running the script's exit handlers."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    # Run the imported module, not `__main__`: its classes are the ones that other modules use.
    from headrace.torch.feed import server as imported

    imported.main(sys.argv[1:])
