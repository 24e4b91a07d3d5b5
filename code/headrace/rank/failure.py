"""What a rank that raised leaves for its host's launcher: a file in the signal folder, written before it ends.

The log says the same to people. But the launcher reads only the output of what it started: where SageMaker's toolkit
starts the ranks, that is one of them. And a file knows its moment, so the first of several is known.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import re
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.job.settings import FEEDS_VARIABLE
from headrace.outcome import LOG_TAIL_LINES, RootCause

PORT_IN_USE = (
    "feed servers run the script up to its first batch too, one beside the ranks of each host: open the port after it, "
    "or only where headrace.torch.is_feed_server() is False"
)
FILE_ELSEWHERE = (
    "each data host reads files itself: give data_group the channel too; what the script writes is on its own host "
    "alone, so make the dataset of it in memory, or train without data hosts"
)
_ADVICE = {
    "The dataset length is unknown.": "take len() of what data.distribute is given, and divide it by hvd.size()",
    "has no attribute 'ref'": "Horovod's own Keras module does not know Keras 3: "
    "import headrace.tensorflow.horovod_keras as hvd",
    "PyFunc is stateful": "an iterator of a distributed dataset is in no checkpoint: leave it out of "
    "tf.train.Checkpoint; to go on in mid-epoch, callbacks.Checkpoint and data.Shards",
}
"""What to do, by what TensorFlow says."""
PREFIX = "failed-rank"
MOST_CHARACTERS = 1_000
_PLACE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_ABOUT_THE_NODE = re.compile(
    r"Detected at node|<stack traces|Hint:|\d+ (successful operations|derived errors|root error)"
)
_PLACES = re.compile(
    r"^\s*(File \"[^\n]*(\n {4,}[^\n]*)*|(Original )?Traceback \(most recent|\[\[\{\{|Exception raised from|frame #)"
    r"[^\n]*$",
    re.MULTILINE,
)
"""Lines that say where, in Python, C++ or a graph, and not what."""

last_words: list[Callable[[], None]] = []
"""Called before a rank that has failed ends, which runs no exit handlers."""


def leave_failure(folder: Path, rank: int, exit_code: int, error: str, trace: list[str]) -> None:
    """Write this rank's file, whole or not at all; does nothing without a launcher.

    Args:
        folder: `TrainerContext.signal_dir`, which has no name without a launcher.
        error: what was raised, in a line.
        trace: the traceback's lines.
    """
    record = {
        "at": time.time(), "rank": rank, "pid": os.getpid(), "exit_code": exit_code, "error": error,
        "traceback": trace[-LOG_TAIL_LINES:],
    }  # fmt: skip
    with contextlib.suppress(OSError):  # the launcher is gone: nobody would read it
        if folder.name:
            partial = folder / f".{PREFIX}{rank}"
            partial.write_text(json.dumps(record), encoding="utf-8")
            partial.rename(folder / f"{PREFIX}{rank}.json")


def text_of(error: BaseException) -> str:
    """What it says; nothing where the script's own class raises as it is asked."""
    try:
        return str(error)
    except Exception:
        return ""


def in_a_line(error: BaseException) -> str:
    """What an exception says, without what is around it in TensorFlow's and torch's, and with why a script exits."""
    if isinstance(error, SystemExit):
        why = _why_it_exits(error)
        said = f"SystemExit: {error.code}" if isinstance(error.code, int) else _joined(str(error.code).splitlines())
        return _cut(f"{said} ({why})" if why else said)
    lines = [line for line in text_of(error).splitlines() if line.strip()]
    if lines and lines[0].startswith("Graph execution error"):
        # Of several errors, the first. Else the last line that is not about where the node was made.
        several = [line.split("(0) ", 1)[1] for line in lines if line.strip().startswith("(0) ")]
        told = [line for line in lines[1:] if not line[0].isspace() and not _ABOUT_THE_NODE.match(line)]
        lines = (several or told[::-1] or lines)[:1]
    elif lines and lines[0].startswith("in user code:"):  # AutoGraph's, with a traceback below, and then the error
        told = [line.strip() for line in lines[1:] if line.startswith("    ") and not line[4:5].isspace()]
        places = [each for each in map(_PLACE.match, told) if each and "-packages" not in each["file"]]
        said = next((line for line in reversed(told) if not line.startswith("File ")), "in user code")
        return _cut(f"{said} ({os.path.basename(places[-1]['file'])}:{places[-1]['line']})" if places else said)
    elif "Last error:" in lines[:-1] and any(each.__name__ == "DistBackendError" for each in type(error).__mro__):
        lines = [lines[lines.index("Last error:") + 1]]  # what precedes it is NCCL's general advice
    elif len(lines) > 2 and lines[0].endswith("following error:"):  # torch.multiprocessing's, with a traceback below
        lines = lines[-1:]
    said = re.sub(r"^(\{\{function_node [^}]*\}\}\s*)+", "", _joined(lines))
    return _cut(f"{type(error).__name__}: {said}") + _advice(error, said)


def _advice(error: BaseException, said: str) -> str:
    """What to do about an error whose text does not say it."""
    if getattr(error, "errno", None) == errno.EADDRINUSE and os.environ.get(FEEDS_VARIABLE):
        return f" ({PORT_IN_USE})"
    if "from worker" in said and "No such file" in said:
        return f" ({FILE_ELSEWHERE})"
    return next((f" ({advice})" for text, advice in _ADVICE.items() if text in said), "")


def _joined(lines: Sequence[str]) -> str:
    """Lines as one, without those of tracebacks; of many, the beginning and the end."""
    if len(lines) < 2:
        return "".join(lines)
    said = " ".join(_PLACES.sub("", "\n".join(lines)).split())
    half = MOST_CHARACTERS // 2 - 50
    return said if len(said) <= 2 * half else f"{said[:half]} … {said[-half:]}"


def _cut(line: str) -> str:
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 1]}…"


def _why_it_exits(leaving: SystemExit) -> str:
    """What argparse printed, or the error that the script, or click, was handling when it left; empty: nothing."""
    for frame, _ in traceback.walk_tb(leaving.__traceback__):
        if frame.f_code is argparse.ArgumentParser.error.__code__:
            return str(frame.f_locals.get("message", ""))
        if str(frame.f_globals.get("__name__")).startswith("click."):  # which leaves when it handles no error any more
            owners = [getattr(value, "__self__", value) for value in frame.f_locals.values()]
            if error := next((owner for owner in owners if isinstance(owner, Exception)), None):
                return in_a_line(error)
    handled = None if isinstance(leaving.code, str) else leaving.__cause__ or leaving.__context__
    return in_a_line(handled) if isinstance(handled, Exception) else ""


def first_failure(folder: Path, host: str) -> RootCause | None:
    """The first of this host's ranks that left a file; None where none did."""
    found = []
    for path in folder.glob(f"{PREFIX}*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            record = json.loads(path.read_text(encoding="utf-8"))
            cause = RootCause(
                host, f"rank{int(record['rank'])}", f"raised {record['error']}", int(record["pid"]),
                exit_code=int(record["exit_code"]), log_tail=tuple(map(str, record["traceback"])),
            )  # fmt: skip
            found.append((float(record["at"]), cause))
    return min(found, key=lambda each: each[0])[1] if found else None
