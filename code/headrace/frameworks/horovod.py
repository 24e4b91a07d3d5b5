"""Horovod in a job: environment variables, stall warnings, installation and shutdown."""

from __future__ import annotations

import atexit
import re
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headrace.frameworks.framework import Installer, RankFacts, StallWords

WHEELS_VARIABLE = "HEADRACE_WHEELS"
"""Variable with the S3 folder that holds the Horovod recipe and the wheels that hosts have built for later jobs."""
RECIPE = "third_party/horovod"
CYCLE_TIME_VARIABLE, CYCLE_TIME_OF_ONE_RANK_MS = "HOROVOD_CYCLE_TIME", 5
_SHUT_DOWN = "Horovod has been shut down"
"""Text in the error that Horovod raises on a rank because another rank has ended."""
STALL_WORDS = StallWords(  # of Horovod 0.28's stall inspector
    "Horovod",
    re.compile(
        r"stall_inspector|One or more tensors were submitted|^Stalled ops:"
        r"|^Missing ranks:|waiting for remainder of ranks"
    ),
    re.compile(r"^(?P<rank>\d+)!?: \[(?P<first>[^\s,\]]*)"),
)


def rank_environ(facts: RankFacts) -> dict[str, str]:
    """Return Horovod's own variables for mpirun and the ranks."""
    found = {
        # Horovod must name the ranks that an allreduce waits for, before the stall watchdog acts. Horovod takes up to
        # three of these periods: one to begin, one to forget its cache, one to report. Horovod's default is 60.
        "HOROVOD_STALL_CHECK_TIME_SECONDS": str(min(max(int(facts.stall_timeout_s / 5), 1), 60)),
        # The second line of defence: Horovod ends the ranks itself if nobody else does.
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": str(int(facts.stall_timeout_s * 2) + 60),
    }
    if facts.world_size == 1 and CYCLE_TIME_VARIABLE not in facts.environ:
        # A single rank has nothing to reduce, so Horovod's thread may look for work less often. Its default is 1 ms.
        found[CYCLE_TIME_VARIABLE] = str(CYCLE_TIME_OF_ONE_RANK_MS)
    return found


def lost_peer(_: BaseException, text: str) -> bool:
    return _SHUT_DOWN in text


def _is_missing(source_dir: Path, environ: Mapping[str, str]) -> bool:
    """Return whether Horovod is missing and can be installed."""
    has_recipe = (source_dir / RECIPE / "build.py").is_file() or bool(environ.get(WHEELS_VARIABLE))
    return has_recipe and find_spec("horovod") is None


def _horovod() -> Any:
    """Return Horovod if the script has started it, else None."""
    module = sys.modules.get("horovod.tensorflow.mpi_ops")
    return module if module is not None and module.is_initialized() else None


def after_script() -> None:
    """Remove Horovod's exit handler, which would end MPI before other exit handlers run. `leave` ends MPI instead."""
    if horovod := _horovod():
        atexit.unregister(horovod.shutdown)


def leave() -> None:
    if horovod := _horovod():
        horovod.shutdown()


INSTALLER = Installer("Horovod", "headrace.tensorflow.install_horovod", _is_missing)
