"""The control channel between hosts: authenticated gRPC on port 16000. It has a few small calls, each with a deadline.

Every host runs a server. The leader calls `renew` on every other host every 1 to 2.5 s, headrace's MPI agent calls
`start_mpi_daemon`, and a rank that sends files calls `has` and `keep`. Unauthenticated clients, malformed messages and
silent connections change nothing.

Importing this module sets two environment variables, because gRPC reads them when it is imported.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # imported before any fork, so that it can make its lock safe for forks
import contextlib
import functools
import itertools
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from typing import Any, NoReturn

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC's log lines about refused calls are noise.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # needless: a forked child calls exec at once

import grpc

from headrace.errors import SetupError
from headrace.host.control.auth import ClientAuth, Refused, ServerAuth
from headrace.host.log import HostLog
from headrace.job.settings import CONTROL_HOSTS_VARIABLE

SERVICE = "headrace.Control"
MAX_MESSAGE_BYTES = 256 * 1024
"""Limit on a call in bytes. It is small because clients can send calls before they are authenticated."""
MAX_REPLY_BYTES = 16 << 20
"""Limit on a reply in bytes. The longest reply is a dnn host's status. In the status, each rank of the host has counts
for every worker of the job. With 8 ranks on the host, and 8,000 workers on 1,000 hosts, the status takes 5 MB."""
CALL_TIMEOUT_S = 3.0
REFUSAL_LOG_INTERVAL_S = 5.0
SILENT_MS = 5000
"""Milliseconds after which a silent connection is closed."""
START_TIMEOUT_S = 10.0
STOP_GRACE_S = 2.0

Body = dict[str, Any]
Handler = Callable[[Body], Body]
StreamHandler = Callable[[Body, AsyncIterator[bytes]], Coroutine[Any, Any, Body]]


def control_hosts() -> dict[str, str]:
    """Return `ADDRESS:PORT` of the control channels, keyed by host, from the variable that mpirun and ranks inherit."""
    return dict(pair.split("=", 1) for pair in os.environ.get(CONTROL_HOSTS_VARIABLE, "").split(",") if pair)


class ControlServer:
    """This host's server of the control channel. Use as a context manager.

    It runs an event loop in its own thread. Only this thread calls the handlers. A call that a client begins and never
    completes costs some memory, but it blocks no other call.
    """

    def __init__(
        self,
        address: str,
        host: str,
        secret: str,
        handlers: Mapping[str, Handler],
        log: HostLog,
        streams: Mapping[str, StreamHandler] | None = None,
    ) -> None:
        self._streams = streams or {}
        self._auth = ServerAuth(secret, host)
        self._address = address
        self._handlers = handlers
        self._refusals = _RefusalLog(log)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="control", daemon=True)
        self._thread.start()
        try:
            self._server, self.port = self._await(self._start(), START_TIMEOUT_S)
        except (RuntimeError, TimeoutError) as error:
            self._end_loop()
            raise SetupError(
                f"Cannot serve the control channel on {address}: the port is taken ({error}); end the other job on "
                "this host first"
            ) from error

    def __enter__(self) -> ControlServer:
        return self

    def __exit__(self, *_: object) -> None:
        # Let pending replies go out: this host's last reply tells the leader that the host has the outcome.
        with contextlib.suppress(TimeoutError):
            self._await(self._server.stop(STOP_GRACE_S), STOP_GRACE_S + 1.0)
        self._end_loop()

    async def _start(self) -> tuple[grpc.aio.Server, int]:
        options = [
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.server_handshake_timeout_ms", SILENT_MS),
        ]
        server = grpc.aio.server(options=options)
        methods = {"hello": self._unary("hello", self._auth.hello)}
        for name in self._handlers:
            methods[name] = self._unary(name, functools.partial(self._call, name))
        for name, take in self._streams.items():
            methods[name] = self._stream(name, take)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        port = server.add_insecure_port(self._address)
        if not port:
            raise RuntimeError("no port")
        await server.start()
        return server, port

    def _await(self, work: Coroutine[Any, Any, Any], timeout_s: float) -> Any:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError as error:  # another class than TimeoutError before Python 3.11
            future.cancel()
            raise TimeoutError(f"no answer within {timeout_s:g} s") from error

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(1.0)

    def _unary(self, name: str, answer: Callable[[bytes], bytes]) -> grpc.RpcMethodHandler:
        async def handle(message: bytes, context: grpc.aio.ServicerContext) -> bytes:
            try:
                return answer(message)
            except Refused as error:
                await self._refuse(name, context, error)

        return grpc.unary_unary_rpc_method_handler(handle)

    def _stream(self, name: str, take: StreamHandler) -> grpc.RpcMethodHandler:
        """Return a gRPC handler that passes a signed message, and the unsigned chunks that follow it, to `take`."""

        async def handle(messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> bytes:
            try:
                first = await asyncio.wait_for(messages.__anext__(), CALL_TIMEOUT_S)
                body, seal = self._auth.open(name, first)
            except (Refused, asyncio.TimeoutError, StopAsyncIteration) as error:
                await self._refuse(name, context, error)
            return seal.seal(await take(body, messages))

        return grpc.stream_unary_rpc_method_handler(handle)

    async def _refuse(self, name: str, context: grpc.aio.ServicerContext, error: Exception) -> NoReturn:
        self._refusals.add(f"{name} from {context.peer()}: {error}")
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        raise AssertionError("abort raises") from error

    def _call(self, name: str, message: bytes) -> bytes:
        body, seal = self._auth.open(name, message)
        return seal.seal(self._handlers[name](body))


class ControlClient:
    """Makes calls to one host. Not thread-safe: each thread needs its own client."""

    def __init__(self, address: str, host: str, secret: str) -> None:
        self._address, self._secret, self._host = address, secret, host
        self._auth: ClientAuth | None = None
        self._open()

    def _open(self) -> None:
        self._channel = grpc.insecure_channel(
            self._address,
            options=[
                ("grpc.enable_http_proxy", 0),
                ("grpc.initial_reconnect_backoff_ms", 200),
                ("grpc.min_reconnect_backoff_ms", 1000),
                ("grpc.max_reconnect_backoff_ms", 1000),
                ("grpc.max_receive_message_length", MAX_REPLY_BYTES),
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def call(
        self, method: str, body: Body, timeout_s: float = CALL_TIMEOUT_S, chunks: Iterable[bytes] | None = None
    ) -> Body:
        """Make one authenticated call; return the reply. In a stream call, unsigned `chunks` follow the signed message.

        Raises:
            ControlError: the host cannot be reached, refuses the call, or sends no authentic reply in time.
        """
        deadline = time.monotonic() + timeout_s
        try:
            if self._auth is None:
                auth = ClientAuth(self._secret, self._host)
                auth.greeted(self._send("hello", auth.hello(), deadline))
                self._auth = auth
            message, seal = self._auth.seal(method, body)
            if chunks is None:
                return seal.open(self._send(method, message, deadline))
            call = self._channel.stream_unary(f"/{SERVICE}/{method}")
            return seal.open(call(itertools.chain([message], chunks), timeout=max(deadline - time.monotonic(), 0.001)))
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNAUTHENTICATED:
                self._auth = None  # The host was restarted, or our secret is wrong: begin a new session.
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                # After an outage, TCP may stay silent for as long as the outage took. A new connection sends at once.
                self._channel.close()
                self._open()
            raise ControlError(f"{error.code().name.lower()}: {error.details()}") from error
        except Refused as error:
            self._auth = None
            raise ControlError(str(error)) from error

    def _send(self, method: str, message: bytes, deadline: float) -> bytes:
        call = self._channel.unary_unary(f"/{SERVICE}/{method}")
        reply: bytes = call(message, timeout=max(deadline - time.monotonic(), 0.001))
        return reply


class ControlError(Exception):
    """Raised if a control call fails; the text says why."""


class _RefusalLog:
    """Logs refused messages at a limited rate, with a count of those not logged."""

    def __init__(self, log: HostLog) -> None:
        self._log = log
        self._next = 0.0
        self._hidden = 0

    def add(self, text: str) -> None:
        now = time.monotonic()
        if now < self._next:
            self._hidden += 1
            return
        self._log.say(f"control channel refused {text}" + (f" (and {self._hidden} more)" if self._hidden else ""))
        self._next, self._hidden = now + REFUSAL_LOG_INTERVAL_S, 0
