"""A process of a feed server: makes batches one after another, for all connections that it is given.

Batches are made one at a time, since the random generators are the process's, and by its main thread, as in torch's own
loader processes: SQLite and signal handlers, among others, know no other. Each connection has a thread that sends.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import itertools
import json
import os
import queue
import resource
import selectors
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from headrace.errors import HeadraceError, InputError
from headrace.torch.feed import protocol as wire
from headrace.torch.feed.encode import encode
from headrace.torch.fetch.iterable_fetcher import StreamMaker
from headrace.torch.fetch.map_fetcher import Maker, Order, StreamOrder, read_order
from headrace.torch.forking import as_worker, outside_of_blocks
from headrace.torch.reused import Reused
from headrace.training.freed_memory import keep_freed_memory

Answer = tuple[int, bytes, list[memoryview]]
"""Kind, header, buffers."""
LOOK_EVERY_S = 0.25
ALIVE_EVERY_S = 2.0
RECEIVE_BYTES = 1 << 16
HIGHEST_DESCRIPTOR = 1 << 14
"""The kernel keeps a table up to a process's highest one."""
HANDED_OVER = struct.Struct("<I")
"""What comes with a connection from the server: the loader's number."""
_numbers = itertools.count()


class _Client:
    """A connection: what has come of it, and a thread that sends, so that the next batch can be made meanwhile."""

    def __init__(self, connection: socket.socket, loader: int, of_stream: bool, alone: bool) -> None:
        self.connection, self.loader = connection, loader
        self._of_stream, self._alone = of_stream, alone
        self.maker: StreamMaker | None = None
        self.makes, self.sending = False, threading.Lock()
        self._records = wire.Records()
        self._answers: queue.SimpleQueue[Answer | None] = queue.SimpleQueue()
        threading.Thread(target=self._send, name="send", daemon=True).start()

    def records(self) -> Iterator[Any]:
        """Those that have come as a whole. Raises `OSError` when the connection has ended, `InputError`."""
        with contextlib.suppress(BlockingIOError):
            came = self.connection.recv(RECEIVE_BYTES, socket.MSG_DONTWAIT)
            if not came:
                raise ConnectionResetError("the rank has gone")
            yield from self._records.of(came)

    def answer(self, answer: Answer) -> None:
        """To be sent; does not wait."""
        self._answers.put(answer)

    def leave(self) -> None:
        """Nothing more is sent."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self._answers.put(None)

    def _send(self) -> None:
        with self.connection:
            while answer := self._next_answer():
                try:
                    with self.sending:
                        wire.send_answer(self.connection, *answer)
                except OSError:  # the process hears of it where it reads
                    with contextlib.suppress(OSError):
                        self.connection.shutdown(socket.SHUT_RDWR)
                    if self._alone and self.makes:  # a part from its beginning, perhaps, and for nobody
                        os._exit(1)

    def _next_answer(self) -> Answer | None:
        """The next one; of a stream also a word that it is made: to come to where training stopped may take long."""
        while True:
            try:
                return self._answers.get(timeout=ALIVE_EVERY_S if self._of_stream else None)
            except queue.Empty:
                if self.maker and self.makes:
                    return wire.ALIVE, str(self.maker.at).encode(), []


class FeedProcess:
    """Serves the connections that come by the mailbox, until it closes.

    Args:
        number: of this process among the server's.
        loaders: the script's.
        limit_s: how long one sample may take, where its loader has no `timeout`.
        send_timeout_s: how long a rank may not read.
    """

    def __init__(self, number: int, count: int, loaders: Sequence[Any], limit_s: float, send_timeout_s: float) -> None:
        self._number, self._count, self._loaders = number, count, loaders
        self._limit_s, self._send_timeout_s = limit_s, send_timeout_s
        self._makers: dict[int, Maker] = {}
        self._reused: dict[int, Reused] = {}
        self._making: tuple[float, float, Maker | StreamMaker, _Client] | None = None

    def run(self, mailbox: socket.socket, of_one: bool = False) -> None:
        """Until the mailbox closes; `of_one`: as long as the first connection lasts."""
        # As torch's own loader processes do, since there is one for each processor. It holds for the calling thread.
        torch.set_num_threads(1)
        keep_freed_memory()
        threading.Thread(target=self._watch, name="sample watch", daemon=True).start()
        with outside_of_blocks(), selectors.PollSelector() as readable:  # which has no descriptor of its own
            readable.register(mailbox, selectors.EVENT_READ)
            while True:
                for key, _ in readable.select():
                    if key.data is None:
                        message, descriptors, _, _ = socket.recv_fds(mailbox, HANDED_OVER.size, 1)
                        if not message:
                            if not of_one or len(readable.get_map()) == 1:
                                return
                            readable.unregister(mailbox)
                            continue
                        if not descriptors:  # this process may open no more
                            continue
                        connection = socket.socket(fileno=_apart(descriptors[0]))
                        with contextlib.suppress(OSError):  # it may have gone meanwhile
                            wire.prepare(connection, self._send_timeout_s)
                        (loader,) = HANDED_OVER.unpack(message)
                        try:
                            client = _Client(connection, loader, self._loaders[loader].is_stream, of_one)
                        except RuntimeError:  # no thread is to be had
                            connection.close()
                            continue
                        readable.register(connection, selectors.EVENT_READ, client)
                    elif not self._serve(key.data):
                        readable.unregister(key.fileobj)
                        key.data.leave()
                        if of_one:
                            return

    def _serve(self, client: _Client) -> bool:
        """Answers what has come; false: the rank has gone, or says what no rank does."""
        try:
            for record in client.records():
                client.answer(self._made(client, read_order(record)))
        except (OSError, InputError):
            return False
        return True

    def _made(self, client: _Client, order: Order | StreamOrder) -> Answer:
        loader = self._loaders[client.loader]
        if isinstance(order, StreamOrder) != loader.is_stream:
            raise InputError("an order of another kind of dataset")
        try:
            maker: Any
            if loader.is_stream:  # where it stands is this connection's
                maker = client.maker = client.maker or loader.maker()
            else:
                maker = self._maker(client.loader)
            client.makes = True
            self._making = (time.monotonic(), loader.timeout or self._limit_s, maker, client)
            made = maker.make(order)
            self._making = None
            if made.over:
                return wire.OVER, b"", []
            header, buffers = encode(made.batch, made.skipped)
            return wire.BATCH, header, self._reused.setdefault(client.loader, Reused()).own_buffers(buffers)
        except HeadraceError as error:
            return wire.FAILED, failure(str(error)), []
        except (Exception, SystemExit) as error:  # of worker_init_fn, of the dataset's set_epoch, of a collated type
            return wire.FAILED, failure(f"{type(error).__name__}: {error}\n{traceback.format_exc()}"), []
        finally:
            self._making, client.makes = None, False

    def _maker(self, number: int) -> Maker:
        if number not in self._makers:
            loader = self._loaders[number]
            self._makers[number] = as_worker(loader, self._number, self._count)
        return self._makers[number]

    def _watch(self) -> None:
        """Ends the process when a sample takes too long: nothing else can end what it runs."""
        at, since = None, 0.0
        while True:
            time.sleep(LOOK_EVERY_S)
            making = self._making
            if making is None:
                continue
            began, limit_s, maker, client = making
            if isinstance(maker, StreamMaker):  # it may first have to come to where training stopped
                at, since = (at, since) if at == maker.at else (maker.at, time.monotonic())
                began = max(began, since)
            if time.monotonic() - began < limit_s:
                continue
            what = "collate_fn" if maker.at is None else f"sample {maker.at}"
            why = f"its batch is not made after {limit_s:g} s (the loader's timeout, else 0.8 stall_timeout_s)"
            text = f"{what} hangs: {why}"
            print(f"{text}; the stacks of all threads:", file=sys.stderr, flush=True)
            faulthandler.dump_traceback(file=sys.stderr)
            try:
                if client.sending.acquire(timeout=LOOK_EVERY_S):  # else within an earlier answer, which nobody reads
                    wire.send_answer(client.connection, wire.FAILED, failure(text))
            except OSError:
                pass
            finally:
                os._exit(1)


def _apart(descriptor: int) -> int:
    """The same under a high number, which none had of late.

    A dataset may close descriptors that are not its own (`os.closerange`). Their numbers are given away again at once,
    and what was meant for one rank would go to another.
    """
    limit = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], HIGHEST_DESCRIPTOR)
    with contextlib.suppress(OSError):  # so many are open
        high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, limit // 2 + next(_numbers) % (limit // 4))
        os.close(descriptor)
        return high
    return descriptor


def failure(text: str) -> bytes:
    """The header of an answer that is no batch."""
    return json.dumps({"error": text[: 1 << 20]}).encode()
