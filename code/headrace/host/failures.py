"""Describe a failed job's root cause, which is a signal or an error, and write the description to files."""

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
    """Write the root cause to SageMaker's failure file and to `root_cause.json`. May be called more than once."""
    write_failure(paths, "\n".join([cause.one_line(), *cause.log_tail]))
    with contextlib.suppress(OSError):
        write_json(paths.output_dir / ROOT_CAUSE, cause.as_json())


def write_failure(paths: HostPaths, text: str) -> None:
    """Write the text to the file that SageMaker shows as the job's FailureReason."""
    try:
        paths.failure.parent.mkdir(parents=True, exist_ok=True)
        paths.failure.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        print(f"headrace: cannot write {paths.failure}, so SageMaker shows no reason: {error}", file=sys.stderr)


def stopped(host: str, signal_name: str) -> RootCause:
    """Return a root cause that says which signal stopped the job."""
    return RootCause(host, LAUNCHER, f"was stopped by {signal_name}", signal=signal_name)


def cause_of(error: Exception, host: str, log: HostLog) -> RootCause:
    """Return a root cause that describes an error. If the error is no `HeadraceError`, also log its traceback."""
    if isinstance(error, HeadraceError):
        return RootCause(host, LAUNCHER, str(error), os.getpid(), exit_code=error.exit_code)
    for line in "".join(traceback.format_exception(error)).splitlines():
        log.say(line)
    return RootCause(host, LAUNCHER, f"failed with {type(error).__name__}: {error}", os.getpid(), exit_code=1)
