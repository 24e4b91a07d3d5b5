"""Start one rank: `python -m headrace.rank -m mpi4py SCRIPT ARGS…`.

mpirun starts this program. Under SageMaker's toolkit, mpirun starts one launcher per rank, which starts this program.

mpi4py runs the script. This module adds four things. A rank dies with its MPI daemon. On SIGUSR1 it prints the stacks
of all its threads. After an uncaught exception it logs the error and aborts MPI. This ends all ranks at once, before
exit handlers can wait for other ranks for ever. Programs that the script left running are ended with the rank, because
they would keep mpirun waiting.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import os
import signal
import string
import sys
import threading
import time
import traceback
import urllib.parse
from collections.abc import Sequence

from headrace.events import RANK_ENDED, RANK_FAILED, RANK_LEAVING, keep_output, say
from headrace.frameworks import FRAMEWORKS
from headrace.job.settings import PREFLIGHT_VARIABLE
from headrace.linux.prctl import adopt_orphans, die_with_parent
from headrace.linux.processes import end_children
from headrace.rank.context import TrainerContext
from headrace.rank.failure import in_a_line, last_words, leave_failure, text_of
from headrace.rank.liveness import Watch
from headrace.rank.preflight.run import run_preflight

LOST_PEER_S = 2.0
"""Seconds that a rank waits before it reports a lost connection, so that the lost rank's own failure comes first."""
_over: list[bool] = []
"""Flag that the script has ended: [] before its end, then [True]."""


def main() -> None:
    die_with_parent()
    adopt_orphans()  # also programs that a shell started with `&` before it ended
    # Write whole lines, so that mpirun's tags stand in front of them and not inside.
    sys.stdout.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
    keep_output()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    arguments = sys.argv[1:]
    if arguments[:2] != ["-m", "mpi4py"] or len(arguments) < 3:
        sys.exit("usage: python -m headrace.rank -m mpi4py SCRIPT [ARGUMENT ...]")
    from mpi4py.run import run_command_line

    atexit.register(_leave)  # registered first, so that it runs last, after libraries have ended their own processes
    threading.excepthook = functools.partial(_thread_failed, arguments[2])
    watch = _watch()
    preflight = os.environ.get(PREFLIGHT_VARIABLE, "")
    try:
        if preflight:
            run_preflight(os.environ)
        for framework in FRAMEWORKS.values():
            framework.before_script(os.environ)
        if preflight != "only":
            run_command_line(arguments[2:])
        _script_is_over()
    except SystemExit as leaving:
        code = int(leaving.code) if isinstance(leaving.code, int) else int(leaving.code is not None)
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
        if code:
            _abort(code & 0xFF or 1, in_a_line(leaving))  # sys.exit(os.system(…)) gives 256, whose low byte is 0
        _script_is_over()
    except BaseException as error:
        _failed(arguments[2], error)
    finally:
        if watch:
            watch.stop()


def _failed(script: str, error: BaseException) -> None:
    broken = any(each.lost_peer(error, text_of(error)) for each in FRAMEWORKS.values())
    if broken:
        time.sleep(LOST_PEER_S)
    trace = _own_trace(error, script)
    with contextlib.suppress(Exception):  # the script may have closed or replaced sys.stderr
        sys.stderr.write("".join(trace))
    _abort(1, in_a_line(error), "".join(trace).splitlines(), broken)


def _thread_failed(script: str, thread: threading.ExceptHookArgs) -> None:
    """Print a thread's error as Python does. End this rank if a training thread lost its connection to another rank."""
    error = thread.exc_value
    in_threads = (each for each in FRAMEWORKS.values() if each.trains_in_threads)
    if error and not _over and any(each.lost_peer(error, text_of(error)) for each in in_threads):
        _failed(script, error)
    threading.__excepthook__(thread)


def _script_is_over() -> None:
    """Record and report that the script has ended, before its exit handlers run."""
    _over.append(True)
    for framework in FRAMEWORKS.values():
        framework.after_script()
    _say_how_far(RANK_ENDED)


def _leave() -> None:
    """End leftover programs and leave MPI, in the last exit handler. If MPI hangs, the launcher ends all ranks soon."""
    end_children()
    _say_how_far(RANK_LEAVING)
    for framework in FRAMEWORKS.values():
        framework.leave()


def _say_how_far(event: str) -> None:
    if number := os.environ.get("OMPI_COMM_WORLD_RANK"):
        say(event, rank=number)


def _watch() -> Watch | None:
    """Start the thread that reports this rank's progress to the launcher. Return None if there is no launcher."""
    folder = TrainerContext.from_environ(os.environ).signal_dir
    number = os.environ.get("OMPI_COMM_WORLD_RANK", "")
    return Watch(folder, int(number)) if folder.name and number.isdecimal() else None


def _own_trace(error: BaseException, script: str) -> list[str]:
    """Return the traceback from the script's first frame on, without the frames that started the script."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != script:
        trace = trace.tb_next
    return traceback.format_exception(type(error), error, trace or error.__traceback__)


def _abort(code: int, error: str, trace: Sequence[str] = (), broken: bool = False) -> None:
    """Report the failure and end all ranks. `broken`: this rank failed because its connection to another rank broke."""
    for each in last_words:
        with contextlib.suppress(Exception):
            each()
    rank = os.environ.get("OMPI_COMM_WORLD_RANK", "0")
    if rank.isdecimal():
        leave_failure(TrainerContext.from_environ(os.environ).signal_dir, int(rank), code, error, list(trace))
    # The message may contain a file's name that is not valid UTF-8.
    quoted = urllib.parse.quote(error, safe=string.punctuation.replace("%", ""), errors="replace")
    with contextlib.suppress(Exception):
        say(RANK_FAILED, rank=rank, pid=os.getpid(), exit_code=code, broken=int(broken), error=quoted)
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    import mpi4py

    mpi4py.rc.initialize = False
    from mpi4py import MPI

    if MPI.Is_initialized() and not MPI.Is_finalized():
        MPI.COMM_WORLD.Abort(code)
    os._exit(code)


if __name__ == "__main__":
    main()
