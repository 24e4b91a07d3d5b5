"""The control channel: authenticated gRPC on port 16000, a few small calls, a deadline on each.

Every host serves; the leader calls `renew` on every other host each second, and headrace's MPI
agent calls `launch`. Strangers, garbage and silence change nothing.
"""

from __future__ import annotations

import concurrent.futures
import functools
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # Its own log lines about strangers are noise here.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # Children are forked and exec'd at once.

import grpc

from headrace.errors import SetupError
from headrace.host.auth import ClientAuth, Refused, ServerAuth
from headrace.host.log import HostLog

SERVICE = "headrace.Control"
MAX_MESSAGE_BYTES = 256 * 1024
CALL_TIMEOUT_S = 3.0
REFUSAL_LOG_INTERVAL_S = 5.0
HANDLER_THREADS = 8
STOP_GRACE_S = 2.0

Body = dict[str, Any]
Handler = Callable[[Body], Body]


class ControlServer:
    """Serves this host's side of the control channel. Use as a context manager."""

    def __init__(self, address: str, host: str, secret: str, handlers: Mapping[str, Handler], log: HostLog) -> None:
        self._auth = ServerAuth(secret, host)
        self._handlers = handlers
        self._log = log
        self._refusals = _RefusalLog(log)
        # A thread pool of grpc's own kind; created here so that its threads never keep the process alive.
        self._pool = concurrent.futures.ThreadPoolExecutor(HANDLER_THREADS, thread_name_prefix="control")
        self._server = grpc.server(
            self._pool,
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.http2.max_ping_strikes", 0),
            ],
        )
        methods = {"hello": self._unary("hello", self._hello)}
        for name in handlers:
            methods[name] = self._unary(name, functools.partial(self._call, name))
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        try:
            self.port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise SetupError(f"Cannot serve the control channel on {address}: {error}") from error
        if not self.port:
            raise SetupError(f"Cannot serve the control channel on {address}: the port is taken")

    def __enter__(self) -> ControlServer:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Replies under way must arrive: the one to the outcome is how the leader knows that it was heard.
        self._server.stop(STOP_GRACE_S).wait(STOP_GRACE_S + 0.5)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _unary(self, name: str, answer: Callable[[bytes], bytes]) -> grpc.RpcMethodHandler:
        def handle(message: bytes, context: grpc.ServicerContext) -> bytes:
            try:
                return answer(message)
            except Refused as error:
                self._refusals.add(f"{name} from {context.peer()}: {error}")
                context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
                raise AssertionError("abort raises") from error

        return grpc.unary_unary_rpc_method_handler(handle)

    def _hello(self, message: bytes) -> bytes:
        return self._auth.hello(message)

    def _call(self, name: str, message: bytes) -> bytes:
        body, seal = self._auth.open(name, message)
        return seal.seal(self._handlers[name](body))


class ControlClient:
    """Calls one host. Not thread-safe: one client, one thread."""

    def __init__(self, address: str, host: str, secret: str) -> None:
        self._secret, self._host = secret, host
        self._auth: ClientAuth | None = None
        self._channel = grpc.insecure_channel(
            address,
            options=[
                ("grpc.enable_http_proxy", 0),
                ("grpc.initial_reconnect_backoff_ms", 200),
                ("grpc.min_reconnect_backoff_ms", 1000),
                ("grpc.max_reconnect_backoff_ms", 1000),
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def call(self, method: str, body: Body, timeout_s: float = CALL_TIMEOUT_S) -> Body:
        """One authenticated call. Raises `ControlError` when the host does not answer, or not authentically."""
        deadline = time.monotonic() + timeout_s
        try:
            if self._auth is None:
                auth = ClientAuth(self._secret, self._host)
                auth.greeted(self._send("hello", auth.hello(), deadline))
                self._auth = auth
            message, seal = self._auth.seal(method, body)
            return seal.open(self._send(method, message, deadline))
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNAUTHENTICATED:
                self._auth = None  # The host was started anew, or we hold the wrong secret: greet again.
            raise ControlError(f"{error.code().name.lower()}: {error.details()}") from error
        except Refused as error:
            self._auth = None
            raise ControlError(str(error)) from error

    def _send(self, method: str, message: bytes, deadline: float) -> bytes:
        call = self._channel.unary_unary(f"/{SERVICE}/{method}")
        reply: bytes = call(message, timeout=max(deadline - time.monotonic(), 0.001))
        return reply


class ControlError(Exception):
    """A control call that did not succeed; the text says why."""


class _RefusalLog:
    """Says that messages were refused, at a limited rate, with a count of those not shown."""

    def __init__(self, log: HostLog) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._next = 0.0
        self._hidden = 0

    def add(self, text: str) -> None:
        with self._lock:
            now = time.monotonic()
            if now < self._next:
                self._hidden += 1
                return
            self._next = now + REFUSAL_LOG_INTERVAL_S
            hidden, self._hidden = self._hidden, 0
        self._log.say(f"control channel refused {text}" + (f" (and {hidden} more)" if hidden else ""))
