"""A feed server's worker, which makes batches for all its connections, one after another.

It makes one batch at a time, because all samples use the process's random generators. It works on the main thread, as
torch's own workers do: SQLite and signal handlers, for example, need that. Each connection has a thread that sends. For
each shard of an `IterableDataset` a worker forks a process, which lives as long as a rank reads the shard.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import queue
import select
import selectors
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import torch
from torch.utils.data import _utils

from headrace.errors import HeadraceError, InputError
from headrace.linux.prctl import die_with_parent
from headrace.linux.processes import close_sockets_on, reopen_files
from headrace.torch.feed import protocol, script
from headrace.torch.feed.codec import encode
from headrace.torch.fetch.iterable_fetcher import IterableFetcher, ShardRequest, set_worker_info
from headrace.torch.fetch.map_fetcher import BatchRequest, MapFetcher
from headrace.torch.fetch.rng import WORKER, sample_seed, seed_all
from headrace.training.freed_memory import keep_freed_memory
from headrace.training.socket_buffers import prepare

Answer = tuple[int, bytes, list[memoryview]]
"""An answer's kind, header and buffers."""
LOOK_EVERY_S = 0.25
ALIVE_EVERY_S = 2.0
REAP_EVERY_S = 2.0
_REQUEST_S = struct.pack("ll", 5, 0)
"""Longest wait for the rest of a request, as (seconds, microseconds). Meanwhile the worker serves no other rank."""
_MOST_KEY_BYTES = 1 << 12


class _Client:
    """A rank's connection, with a thread that sends answers while the next batch is made."""

    def __init__(self, connection: socket.socket, loader: Any) -> None:
        self.connection, self.loader = connection, loader
        self.fetcher: IterableFetcher | None = None
        self.makes, self.sending = False, threading.Lock()
        self.answers: queue.SimpleQueue[Answer | None] = queue.SimpleQueue()
        """The answers to send; None ends the thread."""
        threading.Thread(target=self._send, name="send", daemon=True).start()

    def _send(self) -> None:
        with self.connection:
            while answer := self._next_answer():
                try:
                    with self.sending:
                        protocol.send_answer(self.connection, *answer)
                except OSError:  # the connection has ended: the worker notices this at its next read
                    protocol.end(self.connection)
                    if self.loader.is_stream and self.makes:  # end a replay that no rank waits for
                        os._exit(1)

    def _next_answer(self) -> Answer | None:
        """Wait for the next answer. Return `ALIVE` if a shard's batch takes long, as in the replay after a resume."""
        while True:
            try:
                return self.answers.get(timeout=ALIVE_EVERY_S if self.loader.is_stream else None)
            except queue.Empty:
                if self.fetcher and self.makes:
                    return protocol.ALIVE, str(self.fetcher.at).encode(), []


class Worker:
    """Serves the connections that the server hands to this worker.

    Args:
        number, count: this worker's index, and how many workers the server has.
        loaders: the script's loaders, by key.
        limit_s: seconds allowed for a batch, or for a sample of a stream, if the loader has no `timeout`.
        send_timeout_s: seconds that a rank may leave an answer unread.
    """

    def __init__(
        self, number: int, count: int, loaders: Mapping[str, Any], limit_s: float, send_timeout_s: float
    ) -> None:
        self._number, self._count, self._loaders = number, count, loaders
        self._limit_s, self._send_timeout_s = limit_s, send_timeout_s
        self._fetchers: dict[Any, MapFetcher] = {}
        """Maps each loader of a map-style dataset to the loader's fetcher."""
        self._shards: list[int] = []
        """Ids of the forked processes that make shards."""
        self._making: tuple[float, float, MapFetcher | IterableFetcher, _Client] | None = None

    def run(self, mailbox: socket.socket, port: int) -> NoReturn:
        """Serve connections from `mailbox` in a forked process, until the server on `port` ends or kills the worker."""
        die_with_parent()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        script.process.server = None  # a worker does not run the script
        close_sockets_on(port)
        reopen_files()
        self._begin()
        with _outside_of_blocks(), selectors.PollSelector() as readable:  # poll, unlike epoll, uses no descriptor
            readable.register(mailbox, selectors.EVENT_READ)
            while True:
                for key, _ in readable.select(REAP_EVERY_S):
                    if key.data is None:
                        message, descriptors, _, _ = socket.recv_fds(mailbox, _MOST_KEY_BYTES, 1)
                        if descriptors:
                            self._take(message, descriptors[0], readable)
                    elif not self._serve(key.data):
                        readable.unregister(key.fileobj)
                        protocol.end(key.data.connection)
                        key.data.answers.put(None)
                self._shards = [each for each in self._shards if not _is_over(each)]

    def _begin(self) -> None:
        # Torch uses one thread, as in its own workers: each processor has a worker. The setting is per thread.
        torch.set_num_threads(1)
        keep_freed_memory()
        threading.Thread(target=self._watch, name="sample watch", daemon=True).start()

    def _take(self, message: bytes, descriptor: int, readable: selectors.BaseSelector) -> None:
        """Serve a connection: in a forked process if the loader has an `IterableDataset`, else in this process."""
        connection, loader = socket.socket(fileno=descriptor), self._loaders[message.decode()]
        with contextlib.suppress(OSError):  # the rank may have gone meanwhile
            prepare(connection, self._send_timeout_s)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _REQUEST_S)
        try:
            if not loader.is_stream:
                readable.register(connection, selectors.EVENT_READ, _Client(connection, loader))
                return
            if process := os.fork():
                self._shards.append(process)
            else:
                self._make_shard(connection, loader, readable)
        except (OSError, RuntimeError) as error:  # no process or thread is free
            print(f"cannot start a process or thread: {error}; the rank tries again", file=sys.stderr, flush=True)
        connection.close()

    def _make_shard(self, connection: socket.socket, loader: Any, readable: selectors.BaseSelector) -> None:
        """Serve one shard to a rank, in a forked process, until the rank disconnects."""
        try:
            die_with_parent()
            for each in list(readable.get_map().values()):  # other ranks' connections, and the mailbox
                os.close(each.fd)
            reopen_files()
            self._begin()
            client, waiting = _Client(connection, loader), select.poll()
            waiting.register(connection, select.POLLIN)
            while waiting.poll() and self._serve(client):
                pass
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(0)

    def _serve(self, client: _Client) -> bool:
        """Answer a request that has arrived. Return False if the connection has ended or is not a rank's."""
        try:
            client.answers.put(self._answer(client, protocol.receive_record(client.connection)))
        except (OSError, InputError):
            return False
        return True

    def _answer(self, client: _Client, record: Any) -> Answer:
        request: Any = (ShardRequest if client.loader.is_stream else BatchRequest).from_json(record)
        try:
            fetcher: Any = self._fetcher(client)
            client.makes = True
            self._making = (time.monotonic(), client.loader.timeout or self._limit_s, fetcher, client)
            fetched = fetcher.fetch(request)
            self._making = None
            if fetched.over:
                return protocol.OVER, b"", []
            return protocol.BATCH, *encode(fetched.batch, fetched.skipped, fetched.state)
        except HeadraceError as error:
            return protocol.FAILED, failure(str(error)), []
        except (Exception, SystemExit) as error:  # from worker_init_fn, set_epoch, or code of a class in the batch
            return protocol.FAILED, failure(f"{type(error).__name__}: {error}\n{traceback.format_exc()}"), []
        finally:
            self._making, client.makes = None, False

    def _fetcher(self, client: _Client) -> MapFetcher | IterableFetcher:
        """Return the loader's fetcher. For a stream, each client has a fetcher, which keeps its place in the shard."""
        loader = client.loader
        if loader.is_stream:
            client.fetcher = client.fetcher or loader.fetcher()
            return client.fetcher
        if loader not in self._fetchers:  # the dataset sees this process as one of torch's workers
            seed = sample_seed(loader.seed, 0, self._number, WORKER) % (1 << 62)  # fits an int64, as torch's seeds do
            seed_all(seed)
            set_worker_info(
                _utils.worker.WorkerInfo(id=self._number, num_workers=self._count, seed=seed, dataset=loader.dataset)
            )
            if loader.worker_init_fn:
                loader.worker_init_fn(self._number)
            self._fetchers[loader] = loader.fetcher()
        return self._fetchers[loader]

    def _watch(self) -> None:
        """End the process if a batch takes too long: Python cannot stop the dataset's code in another way."""
        at, since = None, 0.0
        while True:
            time.sleep(LOOK_EVERY_S)
            making = self._making
            if making is None:
                continue
            began, limit_s, fetcher, client = making
            if isinstance(fetcher, IterableFetcher):  # time each sample: a replay after a resume may be long
                at, since = (at, since) if at == fetcher.at else (fetcher.at, time.monotonic())
                began = max(began, since)
            if time.monotonic() - began < limit_s:
                continue
            what = "collate_fn" if fetcher.at is None else f"sample {fetcher.at}"
            why = f"the batch was not ready after {limit_s:g} s (the loader's timeout, or 80% of stall_timeout_s)"
            text = f"{what} hangs: {why}"
            print(f"{text}; the stacks of all threads:", file=sys.stderr, flush=True)
            faulthandler.dump_traceback(file=sys.stderr)
            try:
                if client.sending.acquire(timeout=LOOK_EVERY_S):  # fails if the rank is not reading an earlier answer
                    protocol.send_answer(client.connection, protocol.FAILED, failure(text))
            except OSError:
                pass
            finally:
                os._exit(1)


def _is_over(process: int) -> bool:
    """Return whether a process has ended, and reap it if so."""
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(process, os.WNOHANG)[0] == process
    return True


def failure(text: str) -> bytes:
    """Return the header of an answer of kind `FAILED`."""
    return text[: 1 << 20].encode(errors="replace")


@contextlib.contextmanager
def _outside_of_blocks() -> Iterator[None]:
    """Undo torch contexts, such as no_grad, that the script had entered when the worker was forked."""
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
        yield
