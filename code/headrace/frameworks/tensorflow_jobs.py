"""The `Framework` object of TensorFlow, Keras and Horovod: all that the other packages know of these libraries."""

from __future__ import annotations

import atexit
import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headrace.frameworks.framework import Framework, Installer, RankFacts, Said, StallWords

WHEELS_VARIABLE = "HEADRACE_WHEELS"
"""Variable with the S3 folder that holds the Horovod recipe and the wheels that hosts have built for later jobs."""
RECIPE = "third_party/horovod"
CYCLE_TIME_VARIABLE, CYCLE_TIME_OF_ONE_RANK_MS = "HOROVOD_CYCLE_TIME", 5
_SHUT_DOWN = "Horovod has been shut down"
"""Text in the error that Horovod raises on a rank because another rank has ended."""
_ADVICE = {
    "The dataset length is unknown.": "take len() of the dataset before data.distribute, and divide it by hvd.size()",
    "has no attribute 'ref'": "Horovod's own Keras module does not know Keras 3: "
    "import headrace.tensorflow.horovod_keras as hvd",
    "PyFunc is stateful": "the iterator of a distributed dataset cannot be saved: leave it out of "
    "tf.train.Checkpoint. To resume in mid-epoch, use callbacks.Checkpoint and data.Shards",
}
"""Advice on errors. Each key is a part of the error's text."""
_PLACE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_ABOUT_THE_NODE = re.compile(
    r"Detected at node|<stack traces|Hint:|\d+ (successful operations|derived errors|root error)"
)


def _rank_environ(facts: RankFacts) -> dict[str, str]:
    found = {
        "KERAS_BACKEND": "tensorflow",
        # Horovod names the ranks that an allreduce waits for. It must do so before the stall watchdog acts, and takes
        # up to three of these periods: one to begin, one to forget what it had cached. Its own default is 60.
        "HOROVOD_STALL_CHECK_TIME_SECONDS": str(min(max(int(facts.stall_timeout_s / 5), 1), 60)),
        # The second line of defence: Horovod ends the ranks itself if nobody else does.
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": str(int(facts.stall_timeout_s * 2) + 60),
    }
    if facts.world_size == 1 and CYCLE_TIME_VARIABLE not in facts.environ:
        # One rank has no peer to reduce with, so Horovod's thread need not look for work each millisecond, its default.
        found[CYCLE_TIME_VARIABLE] = str(CYCLE_TIME_OF_ONE_RANK_MS)
    return found


def _process_environ(environ: Mapping[str, str]) -> dict[str, str]:
    return {"TF_CPP_MIN_LOG_LEVEL": environ.get("TF_CPP_MIN_LOG_LEVEL", "2")}


def _what_is_said(lines: Sequence[str]) -> Said | None:
    """Find the message in a graph's execution error, or in an error that AutoGraph has wrapped."""
    if lines and lines[0].startswith("Graph execution error"):
        # Take the first of several errors, else the last line that is not about where the node was made.
        several = [line.split("(0) ", 1)[1] for line in lines if line.strip().startswith("(0) ")]
        told = [line for line in lines[1:] if not line[0].isspace() and not _ABOUT_THE_NODE.match(line)]
        return Said((several or told[::-1] or lines)[:1])
    if lines and lines[0].startswith("in user code:"):  # from AutoGraph: a traceback, and then the error
        told = [line.strip() for line in lines[1:] if line.startswith("    ") and not line[4:5].isspace()]
        places = [each for each in map(_PLACE.match, told) if each and "-packages" not in each["file"]]
        said = next((line for line in reversed(told) if not line.startswith("File ")), "in user code")
        where = f" ({os.path.basename(places[-1]['file'])}:{places[-1]['line']})" if places else ""
        return Said([said + where], names_its_type=True)
    return None


def _advice(_: BaseException, said: str) -> str:
    return next((advice for text, advice in _ADVICE.items() if text in said), "")


def _lost_peer(_: BaseException, text: str) -> bool:
    return _SHUT_DOWN in text


def _lacks_horovod(source_dir: Path, environ: Mapping[str, str]) -> bool:
    """Return whether Horovod is missing and can be installed."""
    has_recipe = (source_dir / RECIPE / "build.py").is_file() or bool(environ.get(WHEELS_VARIABLE))
    return has_recipe and find_spec("horovod") is None


def _horovod() -> Any:
    """Return Horovod if the script has started it, else None."""
    module = sys.modules.get("horovod.tensorflow.mpi_ops")
    return module if module is not None and module.is_initialized() else None


def _after_script() -> None:
    """Remove Horovod's exit handler, which would end MPI before other exit handlers run. `_leave` ends MPI instead."""
    if horovod := _horovod():
        atexit.unregister(horovod.shutdown)


def _leave() -> None:
    if horovod := _horovod():
        horovod.shutdown()


TENSORFLOW = Framework(
    name="tensorflow",
    title="TensorFlow",
    training_script="train_dnn.py",
    image_version="2.21.0",  # the version in code/constraints.txt, for which AWS has an image
    modules=("tensorflow", "keras", "horovod"),
    how_to_install="in a checkout, `make setup` and use .venv/bin/python; "
    "else `pip install headrace[local]` (or [submit]) and `headrace setup`",
    data_service="tf_data",
    without_sharing="distribute(..., shared=False)",
    measured_by="callbacks.Measure",
    rank_environ=_rank_environ,
    what_is_said=_what_is_said,
    lost_peer=_lost_peer,
    has_lint=True,
    installer=Installer("Horovod", "headrace.tensorflow.install_horovod", _lacks_horovod),
    recipe=RECIPE,
    process_environ=_process_environ,
    trains_in_threads=True,
    # Printed at the start of every process, before its own log level can be set.
    noise=r"All log messages before absl::InitializeLog|oneDNN custom operations are on",
    stall_words=StallWords(  # of Horovod 0.28's stall inspector
        "Horovod",
        re.compile(
            r"stall_inspector|One or more tensors were submitted|^Stalled ops:"
            r"|^Missing ranks:|waiting for remainder of ranks"
        ),
        re.compile(r"^(?P<rank>\d+)!?: \[(?P<first>[^\s,\]]*)"),
    ),
    advice=_advice,
    after_script=_after_script,
    leave=_leave,
)
