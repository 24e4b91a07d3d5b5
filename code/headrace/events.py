"""The one-line log events that people grep, CloudWatch counts, and headrace itself reads back.

An event is `headrace event=NAME key=value …` anywhere in a log line. Values hold no spaces.
"""

from __future__ import annotations

import contextlib
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TextIO

RANK_FAILED = "rank_failed"
"""A rank has raised an exception that nobody caught."""
PREFLIGHT_STARTED, PREFLIGHT_FAILED = "preflight_started", "preflight_failed"
"""A preflight begins; it has found the rank to blame."""
WAITS_FOR_ENDS = "waits_for_ends"
"""A rank waits at the end of a stream for others to say whether it goes on."""
WAITS_FOR_RANKS = "waits_for_ranks"
"""A rank has long been in a collective that others have not joined."""
READS_DATA = "reads_data"
"""A rank's script has made a dataset with headrace: from now on it may wait for data."""
RANK_ENDED = "rank_ended"
"""A rank's script has come to its end; the process waits for the other ranks."""
RANK_LEAVING = "rank_leaving"
"""A rank's exit handlers are over as well: what is left is MPI's end, and Python's."""
CHECKPOINTS_ON_REQUEST = "checkpoints_on_request"
"""Rank 0 will answer a stop request with a checkpoint."""
WORKER_OFFERS = "worker_offers"
"""A worker says by which protocol it can send batches, before it does anything else."""
FEED_READY = "feed_ready"
"""A feed server can make batches of the script's loaders."""

_EVENT = re.compile(r"\bheadrace event=(?P<name>\w+)(?P<fields>(?: \w+=\S*)*)")


@contextlib.contextmanager
def keep_going() -> Iterator[None]:
    """For a thread that others depend on: what is raised here is said, and it goes on."""
    try:
        yield
    except Exception:
        with contextlib.suppress(OSError, ValueError):
            traceback.print_exc(file=sys.__stderr__)


@dataclass(frozen=True)
class Event:
    """One parsed event: its name and its fields, all text."""

    name: str
    fields: Mapping[str, str]


def format_event(event_name: str, /, **fields: object) -> str:
    """The event as one line. White space in a value becomes `_`; floats get four significant digits."""
    return " ".join([f"headrace event={event_name}"] + [f"{key}={_value(value)}" for key, value in fields.items()])


_kept: list[TextIO] = []


def say(event_name: str, /, **fields: object) -> None:
    """Print an event: a rank and a server tell their launcher this way, whatever the script does to its output."""
    line = format_event(event_name, **fields)
    for stream in (*_kept, sys.stdout, sys.__stderr__):
        with contextlib.suppress(Exception):  # the script closed it, or has put something of its own there
            print(line, file=stream, flush=True)
            return


def keep_output() -> None:
    """Events go where standard output is now, also once the script has put another in its place."""
    _kept[:] = [sys.stdout]


def parse_event(line: str) -> Event | None:
    """The event in a log line, or None when it holds none."""
    match = _EVENT.search(line)
    if match is None:
        return None
    return Event(match["name"], dict(field.split("=", 1) for field in match["fields"].split()))


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return re.sub(r"\s+", "_", str(value).strip())
