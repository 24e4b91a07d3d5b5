"""Make root causes from stop requests and errors, and write them where they are looked for."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback

from headrace.cluster.run_files import ROOT_CAUSE, HostPaths, write_json
from headrace.errors import HeadraceError
from headrace.host.log import LAUNCHER, HostLog
from headrace.outcome import RootCause


def leave(paths: HostPaths, cause: RootCause) -> None:
    """Write the root cause where people and SageMaker look for it. May be called again."""
    write_failure(paths, "\n".join([cause.one_line(), *cause.log_tail]))
    with contextlib.suppress(OSError):
        write_json(paths.output_dir / ROOT_CAUSE, cause.as_json())


def write_failure(paths: HostPaths, text: str) -> None:
    """Write the file in which SageMaker looks for the reason of a failure."""
    try:
        paths.failure.parent.mkdir(parents=True, exist_ok=True)
        paths.failure.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        print(f"headrace: cannot write {paths.failure}: {error}", file=sys.stderr)


def stopped(host: str, signal_name: str) -> RootCause:
    """Return the root cause of a job that a signal stopped."""
    return RootCause(host, LAUNCHER, f"was stopped by {signal_name}", signal=signal_name)


def cause_of(error: Exception, host: str, log: HostLog) -> RootCause:
    """Return the root cause of a job that an error ended; write the traceback of an unexpected one to the log."""
    if isinstance(error, HeadraceError):
        return RootCause(host, LAUNCHER, str(error), os.getpid(), exit_code=error.exit_code)
    for line in "".join(traceback.format_exception(error)).splitlines():
        log.say(line)
    return RootCause(host, LAUNCHER, f"failed with {type(error).__name__}: {error}", os.getpid(), exit_code=1)
