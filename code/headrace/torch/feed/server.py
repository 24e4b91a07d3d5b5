"""A feed server: makes batches for ranks, in processes of its own.

    python -m headrace.torch.feed.server --port 6001 --address algo-1:6001 SCRIPT [ARGUMENT ...]

It runs the training script up to where that would take its first batch: by then the datasets are made.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import functools
import hashlib
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from headrace.errors import HeadraceError, InputError
from headrace.events import FEED_READY, say
from headrace.rank_failure import PORT_IN_USE
from headrace.settings import SECRET_VARIABLE, STALL_TIMEOUT_VARIABLE, OneLineParser
from headrace.torch import registry
from headrace.torch.feed.script import run_until_first_batch
from headrace.torch.feed_admission import FeedServer
from headrace.torch.forking import processes_for

LOOK_AGAIN_S = 0.5


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
    except Exception as error:
        _wait_while_serving()
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            _refuse(f"{given.script} ended here, before its first batch: {error} ({PORT_IN_USE})")
        print(f"feed server: {given.script} failed here, before its first batch:", file=sys.stderr)
        traceback.print_exc()
        if any(word in traceback.format_exc().lower() for word in ("cuda", "nvidia", "device_ids")):
            print("this host makes batches on its CPU: place models on headrace.torch.device()", file=sys.stderr)
        if registry.OTHER_PROCESS in traceback.format_exc():
            _refuse(registry.OTHER_PROCESS)
        if not isinstance(error, OSError):  # which may be gone the next time
            _refuse_the_second_time(f"{type(error).__name__}: {error}")
    _leave(1)


def _refuse_the_second_time(said: str) -> None:
    """Of what fails alike again, further attempts are in vain."""
    names = (SECRET_VARIABLE, "SM_CURRENT_HOST", "HEADRACE_SERVER_NAME")
    which = hashlib.sha256("\n".join(os.environ.get(name, "") for name in names).encode()).hexdigest()[:12]
    with contextlib.suppress(OSError):
        before = Path(tempfile.gettempdir()) / f"headrace-failed-{which}"
        if before.exists() and before.read_text(encoding="utf-8") == said:
            _refuse(
                f"the script fails on a data host, before its first batch: {said} (a feed server runs it as the only "
                "rank, and without a GPU)"
            )
        before.write_text(said, encoding="utf-8")


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
        time.sleep(LOOK_AGAIN_S)


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
    from headrace.torch.feed import server as feed_server

    feed_server.main(sys.argv[1:])
