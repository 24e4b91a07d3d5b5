"""Log events of one line each: users can grep them, CloudWatch counts them, and headrace itself reads them back.

An event is `headrace event=NAME key=value …` anywhere in a log line. Values contain no spaces.
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
"""A rank's script raised an exception that it did not catch."""
PREFLIGHT_STARTED, PREFLIGHT_FAILED = "preflight_started", "preflight_failed"
"""The preflight, which is the ranks' test of MPI, has begun or has failed. The second event names the rank at fault."""
WAITS_FOR_ENDS = "waits_for_ends"
"""A rank has read a distributed dataset to its end, and waits for other ranks to say whether they have more batches."""
WAITS_FOR_RANKS = "waits_for_ranks"
"""A rank has waited long in a collective that other ranks have not joined. With `over=1`, that wait has ended."""
READS_DATA = "reads_data"
"""A rank's script reads data through headrace. From now on, a standstill can mean that the ranks wait for data."""
RANK_ENDED = "rank_ended"
"""A rank's script has ended; its exit handlers have yet to run."""
RANK_LEAVING = "rank_leaving"
"""A rank's exit handlers have ended; only MPI and Python have yet to shut down."""
CHECKPOINTS_ON_REQUEST = "checkpoints_on_request"
"""Rank 0 will answer a stop request with a checkpoint."""
WORKER_OFFERS = "worker_offers"
"""A worker has started. The event names the protocol by which the worker can send batches."""
FEED_READY = "feed_ready"
"""A feed server, which makes batches for PyTorch ranks, has found the script's data loaders and is ready."""

_EVENT = re.compile(r"headrace event=(?P<name>\w+)(?P<fields>(?: \w+=\S*)*)")


@contextlib.contextmanager
def keep_going() -> Iterator[None]:
    """Print an exception in the block instead of raising it, for threads that must not end."""
    try:
        yield
    except Exception:
        with contextlib.suppress(OSError, ValueError):
            traceback.print_exc(file=sys.__stderr__)


@dataclass(frozen=True)
class Event:
    """A parsed event: its name and its fields, all as text."""

    name: str
    fields: Mapping[str, str]


def format_event(event_name: str, /, **fields: object) -> str:
    """Return an event as one line. White space in a value becomes `_`; floats get four significant digits."""
    return " ".join([f"headrace event={event_name}"] + [f"{key}={_value(value)}" for key, value in fields.items()])


_kept: list[TextIO] = []


def say(event_name: str, /, **fields: object) -> None:
    """Print an event for the launcher, from a rank or a server, even if the script has replaced sys.stdout."""
    line = format_event(event_name, **fields)
    for stream in (*_kept, sys.stdout, sys.__stderr__):
        with contextlib.suppress(Exception):  # the script may have closed or replaced the stream
            print(line, file=stream, flush=True)
            return


def keep_output() -> None:
    """Make `say` print to the present sys.stdout, even after the script has replaced it."""
    _kept[:] = [sys.stdout]


def parse_event(line: str) -> Event | None:
    """Return the event in a log line, or None if there is none."""
    match = _EVENT.search(line)
    if match is None:
        return None
    return Event(match["name"], dict(field.split("=", 1) for field in match["fields"].split()))


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return re.sub(r"\s+", "_", str(value).strip())
