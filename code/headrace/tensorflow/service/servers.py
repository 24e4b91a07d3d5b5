"""The tf.data service dispatcher and worker, each in a process of its own."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from headrace.errors import HeadraceError, SetupError
from headrace.events import WORKER_OFFERS, say
from headrace.rank.context import GRPC
from headrace.tensorflow.service import pywrap_servers, transfer
from headrace.terminal.parser import OneLineParser
from headrace.training.freed_memory import keep_freed_memory

SERVER_NAME_VARIABLE = "HEADRACE_SERVER_NAME"
REGISTERED_POLL_S = 0.1
HEARTBEAT_INTERVAL_MS = 1_000
"""Milliseconds between a worker's reports to the dispatcher. The replies bring tasks for new datasets."""


def main(argv: Sequence[str]) -> int:
    """Run one server until it is killed; return the exit code after an error."""
    parser = OneLineParser(prog="train_data.py", description="Runs one tf.data service server until it is killed.")
    roles = parser.add_subparsers(dest="role", required=True, metavar="{dispatcher,worker}")
    dispatcher = roles.add_parser("dispatcher", help="hands datasets out to the workers")
    dispatcher.add_argument("--port", type=int, required=True)
    dispatcher.add_argument("--work_dir", type=Path, required=True, help="folder of the journal, read after a restart")
    worker = roles.add_parser("worker", help="makes batches and sends them to the trainers")
    worker.add_argument("--port", type=int, required=True)
    worker.add_argument("--address", required=True, help="HOST:PORT under which trainers reach this worker")
    worker.add_argument("--transfer_address", default="", help="HOST:PORT to serve batches by headrace's protocol")
    worker.add_argument("--protocol_file", type=Path, help="file in which the launcher names the job's protocol")
    worker.add_argument("--dispatcher", required=True, help="HOST:PORT of the dispatcher")
    worker.add_argument("--timeout_s", type=float, default=900.0, help="seconds to wait for the dispatcher")
    name = parser.prog
    try:
        arguments = parser.parse_args(argv)
        name = _name(arguments.role)
        if arguments.role == "dispatcher":
            serve_dispatcher(arguments.port, arguments.work_dir)
        else:
            transfer_address = offered(arguments.transfer_address, arguments.protocol_file, arguments.timeout_s)
            serve_worker(arguments.port, arguments.address, transfer_address, arguments.dispatcher, arguments.timeout_s)
    except HeadraceError as error:
        print(f"{name}: error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


def serve_dispatcher(port: int, work_dir: Path) -> None:
    """Run a fault-tolerant dispatcher, and log the number of registered workers whenever it changes, for ever."""
    work_dir.mkdir(parents=True, exist_ok=True)
    server = pywrap_servers.start_dispatcher(port, work_dir)
    say("dispatcher_ready", port=port)
    say("server_ready", name=_name("dispatcher"), port=port)
    reported = -1
    while True:
        registered = server.num_workers()
        if registered != reported:
            reported = registered
            say("workers_registered", n=registered)
        time.sleep(REGISTERED_POLL_S)


def offered(transfer_address: str, protocol_file: Path | None, timeout_s: float) -> str:
    """Log this worker's protocol for the launcher. Return `transfer_address`; '' if the worker can send by gRPC only.

    Raises:
        SetupError: this worker can send by gRPC only, but the leader has chosen headrace's protocol for the job.
        DeadlineError: this worker can send by gRPC only, and the leader has not chosen the job's protocol in time.
    """
    has_transfer = bool(transfer_address) and transfer.load()
    say(WORKER_OFFERS, name=_name("worker"), data_transfer_protocol=transfer.PROTOCOL if has_transfer else GRPC)
    if has_transfer or not protocol_file:
        return transfer_address if has_transfer else ""
    # Ranks read from a registered worker at once, so it must not register before the protocol is decided.
    if transfer.agreed_protocol(protocol_file, timeout_s) == transfer.PROTOCOL:
        raise SetupError(
            f"this host cannot send batches by {transfer.PROTOCOL}'s own transfer (see the reason above), but all "
            "other workers of the job use it: fix the cause on this host"
        )
    return ""


def serve_worker(port: int, address: str, transfer_address: str, dispatcher: str, timeout_s: float) -> None:
    """Run a worker that registers with the dispatcher, which may start later."""
    keep_freed_memory()
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # each consumer takes an open file
    server = pywrap_servers.start_worker(
        port, address, dispatcher, HEARTBEAT_INTERVAL_MS, int(timeout_s * 1000), transfer_address
    )
    protocol = transfer.PROTOCOL if transfer_address else GRPC
    say("server_ready", name=_name("worker"), port=port, data_transfer_protocol=protocol)
    server.join()


def _name(default: str) -> str:
    return os.environ.get(SERVER_NAME_VARIABLE, default)
