"""Print a job's logs as they come, with host, group and role before every line.

CloudWatch names a log stream after the job and the host. The host's group is in the first event (`topology`) of its
launcher. Until that event, the stream's lines are held back, for at most `HOLD_S` seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from headrace.backends.sagemaker.account import aws_errors, ignored, is_denied
from headrace.errors import HeadraceError
from headrace.events import parse_event

LOG_GROUP = "/aws/sagemaker/TrainingJobs"
HOLD_S = 60.0
"""Longest time in seconds that log lines wait for the topology event. Installing requirements delays that event."""


@dataclass
class _Stream:
    host: str
    token: str | None = None
    tag: str | None = None
    held: list[str] = field(default_factory=list)
    since: float = 0.0


class LogTail:
    """Follows all log streams of a job."""

    def __init__(self, client: Any, job_name: str, say: Callable[[str], None]) -> None:
        self.client = client
        """Client for CloudWatch Logs. The follower replaces it after an error, to use new credentials."""
        self._job_name = job_name
        self._say = say
        self._streams: dict[str, _Stream] = {}
        self._is_denied = self._is_failing = False
        self._lines = 0

    def poll(self) -> bool:
        """Print the log lines that came since the last call. After an error, the next call prints the missed lines.

        Returns:
            True if the caller should call again, because lines came or could not be read.
        """
        lines, is_unread = self._lines, False
        try:
            with aws_errors(f"reading the logs of {self._job_name}"):
                is_unread = self._read()
            self._is_failing = False
        except HeadraceError as error:
            self._complain(error)
            is_unread = not self._is_denied
        for stream in self._streams.values():
            if stream.held and time.monotonic() - stream.since > HOLD_S:
                self._release(stream, f"{stream.host} ?")
        return is_unread or self._lines > lines

    def _read(self) -> bool:
        """Read the new lines. Return True if AWS throttled a call: some lines may still be unread."""
        if self._is_denied:
            return False
        with ignored("ThrottlingException"):
            with ignored("ResourceNotFoundException"):  # no host has written a line yet
                self._find_streams()
                for name, stream in self._streams.items():
                    for line in self._new_lines(name, stream):
                        self._take(stream, line)
            return False
        return True

    def _complain(self, error: HeadraceError) -> None:
        """Print the first of several errors in a row. Do not raise: a job can be followed without its logs."""
        self._is_denied = is_denied(error)
        if self._is_denied:
            self._say(f"{error}; following {self._job_name} without its logs")
        elif not self._is_failing:
            self._say(f"{error}; trying again")
        self._is_failing = True

    def release(self) -> None:
        """Print all lines that are still held back."""
        for stream in self._streams.values():
            self._release(stream, f"{stream.host} ?")

    def _find_streams(self) -> None:
        pages = self.client.get_paginator("describe_log_streams").paginate(
            logGroupName=LOG_GROUP, logStreamNamePrefix=f"{self._job_name}/"
        )
        for page in pages:
            for record in page["logStreams"]:
                name = record["logStreamName"]
                if name not in self._streams:  # such as JOB/algo-1-1700000000
                    self._streams[name] = _Stream(name.split("/")[-1].rpartition("-")[0] or name.split("/")[-1])

    def _new_lines(self, name: str, stream: _Stream) -> Iterator[str]:
        while True:
            after = {"nextToken": stream.token} if stream.token else {}
            answer = self.client.get_log_events(logGroupName=LOG_GROUP, logStreamName=name, startFromHead=True, **after)
            yield from (event["message"].rstrip("\n") for event in answer["events"])
            if answer["nextForwardToken"] == stream.token:
                return
            stream.token = answer["nextForwardToken"]  # only now: after an error, unprinted lines are read again

    def _take(self, stream: _Stream, line: str) -> None:
        self._lines += 1
        event = parse_event(line) if stream.tag is None else None
        if event and event.name == "topology":
            host = event.fields.get("host", stream.host)
            stream.tag = f"{host} {event.fields.get('group', '?')} {event.fields.get('role', '?')}"
            self._release(stream, stream.tag)
        if stream.tag is not None:
            self._say(f"{stream.tag} | {line}")
            return
        stream.since = stream.since if stream.held else time.monotonic()
        stream.held.append(line)

    def _release(self, stream: _Stream, tag: str) -> None:
        for line in stream.held:
            self._say(f"{tag} | {line}")
        stream.held.clear()
