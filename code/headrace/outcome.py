"""The outcome of a job, the same for all hosts, with one root cause if it failed."""

from __future__ import annotations

import signal as signals
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LONGEST_LINE_BYTES = 1000
"""Most bytes of each log line that is sent with an outcome. Longer lines are cut: messages have a size limit."""
LOG_TAIL_LINES = 30
"""Number of lines of a failed process's log that are sent with the root cause."""


@dataclass(frozen=True)
class RootCause:
    """The first failure of a job: its host, the process, how it ended and the end of its log."""

    host: str
    process: str
    """The process's name, such as `rank1` or `worker-0`. JSON and log events call this field `role`."""
    message: str
    pid: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    log_tail: tuple[str, ...] = ()

    def one_line(self) -> str:
        who = f"{self.process} on {self.host}" + (f" (pid {self.pid})" if self.pid else "")
        return f"{who}: {self.message}"

    def as_json(self) -> dict[str, Any]:
        """Return the root cause as JSON types, with `exit_code` or `signal`, never both."""
        ended = {"signal": self.signal} if self.signal else {"exit_code": self.exit_code}
        return {
            "host": self.host,
            "role": self.process,
            "message": _shortened(self.message, 2 * LONGEST_LINE_BYTES),
            "pid": self.pid,
            **ended,
            "log_tail": [_shortened(line, LONGEST_LINE_BYTES) for line in self.log_tail[-LOG_TAIL_LINES:]],
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> RootCause:
        """Read what `as_json` returned. The input is not trusted: values of wrong types become text or are left out."""
        code, pid, tail = record.get("exit_code"), record.get("pid"), record.get("log_tail")
        return cls(
            host=str(record.get("host", "?")),
            process=str(record.get("role", "?")),
            message=str(record.get("message", "")),
            pid=pid if isinstance(pid, int) else None,
            exit_code=code if isinstance(code, int) else None,
            signal=str(record["signal"]) if record.get("signal") else None,
            log_tail=tuple(map(str, tail)) if isinstance(tail, (list, tuple)) else (),
        )


@dataclass(frozen=True)
class Outcome:
    """Outcome of a job: `succeeded`, or `failed` with its root cause."""

    root_cause: RootCause | None = None

    @property
    def status(self) -> str:
        return "failed" if self.root_cause else "succeeded"

    @property
    def exit_code(self) -> int:
        return 1 if self.root_cause else 0

    def as_json(self) -> dict[str, Any]:
        return {"status": self.status, "root_cause": self.root_cause and self.root_cause.as_json()}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Outcome:
        if record.get("status") == "succeeded":
            return cls()
        cause = record.get("root_cause")
        return cls(RootCause.from_json(cause if isinstance(cause, Mapping) else {}))


def _shortened(text: str, most_bytes: int) -> str:
    """Return the beginning of a text, at most `most_bytes` bytes in UTF-8."""
    return text.encode(errors="replace")[:most_bytes].decode(errors="ignore")


def describe_return_code(code: int) -> tuple[int | None, str | None, str]:
    """Return exit code, signal name and a phrase for a `Popen.returncode`, which is negative for signals."""
    if code >= 0:
        return code, None, f"exited with {code}"
    try:
        name = signals.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return None, name, f"was killed by {name}"
