"""The failure file, which a failed rank writes before it ends, so that its host's launcher learns the error.

The rank's output has the error too. But if SageMaker's toolkit starts the ranks, the launcher sees only one rank's
output. Each file records the time of the failure, by which the launcher finds the earliest one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.frameworks import FRAMEWORKS
from headrace.frameworks.framework import Said
from headrace.outcome import LOG_TAIL_LINES, RootCause

FILE_ELSEWHERE = (
    "each data host reads files itself: give data_group the file's channel too. If the script wrote the file, only the "
    "script's host has it: make the dataset in memory instead, or train without data hosts"
)
PREFIX = "failed-rank"
MOST_CHARACTERS = 1_000
_PLACES = re.compile(
    r"^\s*(File \"[^\n]*(\n {4,}[^\n]*)*|(Original )?Traceback \(most recent|\[\[\{\{|Exception raised from|frame #)"
    r"[^\n]*$",
    re.MULTILINE,
)
"""Pattern of lines that show only where an error arose (in Python, C++ or a graph), and not what it was."""

last_words: list[Callable[[], None]] = []
"""Functions to call before a failed rank ends, since its exit handlers do not run."""


def leave_failure(folder: Path, rank: int, exit_code: int, error: str, trace: list[str]) -> None:
    """Write this rank's failure file, whole or not at all. Without a launcher, do nothing.

    Args:
        folder: `TrainerContext.signal_dir`; without a launcher, it is an empty path.
        error: the exception as one line.
    """
    record = {
        "at": time.time(),
        "rank": rank,
        "pid": os.getpid(),
        "exit_code": exit_code,
        "error": error,
        "traceback": trace[-LOG_TAIL_LINES:],
    }
    with contextlib.suppress(OSError):  # the launcher is gone: nobody would read it
        if folder.name:
            partial = folder / f".{PREFIX}{rank}"
            partial.write_text(json.dumps(record), encoding="utf-8")
            partial.rename(folder / f"{PREFIX}{rank}.json")


def text_of(error: BaseException) -> str:
    """Return an error's text, or an empty text if the error's own `__str__` raises."""
    try:
        return str(error)
    except Exception:
        return ""


def in_a_line(error: BaseException) -> str:
    """Return an exception as one line. Text that frameworks add is left out; for SystemExit, the reason is added."""
    if isinstance(error, SystemExit):
        why = _why_it_exits(error)
        said = f"SystemExit: {error.code}" if isinstance(error.code, int) else _joined(str(error.code).splitlines())
        return _cut(f"{said} ({why})" if why else said)
    lines = [line for line in text_of(error).splitlines() if line.strip()]
    found = next(filter(None, (each.what_is_said(lines) for each in FRAMEWORKS.values())), Said(lines))
    if found.names_its_type:
        return _cut(_joined(found.lines))
    said = re.sub(r"^(\{\{function_node [^}]*\}\}\s*)+", "", _joined(found.lines))
    return _cut(f"{type(error).__name__}: {said}") + _advice(error, said)


def _advice(error: BaseException, said: str) -> str:
    """Return advice on an error whose own text gives none; empty if headrace knows no advice."""
    if "from worker" in said and "No such file" in said:
        return f" ({FILE_ELSEWHERE})"
    found = (each.advice(error, said) for each in FRAMEWORKS.values())
    return next((f" ({advice})" for advice in found if advice), "")


def _joined(lines: Sequence[str]) -> str:
    """Join the lines of a message into one line. Leave out tracebacks, and the middle of a long text."""
    if len(lines) < 2:
        return "".join(lines)
    said = " ".join(_PLACES.sub("", "\n".join(lines)).split())
    half = MOST_CHARACTERS // 2 - 50
    return said if len(said) <= 2 * half else f"{said[:half]} … {said[-half:]}"


def _cut(line: str) -> str:
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 1]}…"


def _why_it_exits(leaving: SystemExit) -> str:
    """Return why the script called exit: argparse's message, or the error that led to the exit; empty if unknown."""
    for frame, _ in traceback.walk_tb(leaving.__traceback__):
        if frame.f_code is argparse.ArgumentParser.error.__code__:
            return str(frame.f_locals.get("message", ""))
        if str(frame.f_globals.get("__name__")).startswith("click."):  # click exits after it has handled the error
            owners = [getattr(value, "__self__", value) for value in frame.f_locals.values()]
            if error := next((owner for owner in owners if isinstance(owner, Exception)), None):
                return in_a_line(error)
    handled = None if isinstance(leaving.code, str) else leaving.__cause__ or leaving.__context__
    return in_a_line(handled) if isinstance(handled, Exception) else ""


def first_failure(folder: Path, host: str) -> RootCause | None:
    """Return the earliest failure in the failure files of this host's ranks; None if there are no files."""
    found = []
    for path in folder.glob(f"{PREFIX}*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            record = json.loads(path.read_text(encoding="utf-8"))
            cause = RootCause(
                host,
                f"rank{int(record['rank'])}",
                f"raised {record['error']}",
                int(record["pid"]),
                exit_code=int(record["exit_code"]),
                log_tail=tuple(map(str, record["traceback"])),
            )
            found.append((float(record["at"]), cause))
    return min(found, key=lambda each: each[0])[1] if found else None
