"""The supervisor starts a host's child processes, restarts servers that end, and finally ends all children.

Each child runs in its own session and dies with this process. A thread reads its output, writes it to the log and
passes log events on. The main loop calls `poll`, which restarts children and returns those that ended for good.
"""

from __future__ import annotations

import collections
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import InputError, SetupError
from headrace.events import Event, parse_event
from headrace.host.log import HostLog
from headrace.linux import prctl, processes
from headrace.outcome import LOG_TAIL_LINES, RootCause, describe_return_code

FIRST_BACK_OFF_S = 0.5
LONGEST_BACK_OFF_S = 8.0
FORGIVEN_AFTER_S = 600.0
"""Once a child has run for this many seconds, its earlier restarts no longer count towards `max_restarts`."""
MAX_LINE_CHARS = 16_384
READ_REST_S = 1.0
"""Seconds to wait for an ended child's last output. Its pipe may stay open, if another process holds it."""

FINAL_EXIT = InputError.exit_code
"""Exit code of a server that would fail again after a restart. Such a server is not restarted."""


@dataclass(frozen=True)
class ChildSpec:
    """How to start a child process, read its output, and restart it."""

    kind: str
    """`trainer`, `mpi-daemon`, `installer` or the kind of a server. Restarts are counted by kind."""
    name: str
    """Name in front of the child's log lines: the kind, with a number if a host has several of the kind."""
    argv: Sequence[str]
    environ: Mapping[str, str]
    cwd: Path
    restart: bool = False
    """Whether to start the child again, on the same port, when it ends."""
    nice: int = 0
    label: Callable[[str], tuple[str, str]] | None = field(default=None, compare=False)
    """Function that returns author and text of an output line. Without it, the child is the author of all lines."""
    on_event: Callable[[Event], None] | None = field(default=None, compare=False)
    """Function that the reader's thread calls with each log event in the output."""


@dataclass
class Child:
    """A started child: its process, restarts so far, and its last output lines."""

    spec: ChildSpec
    process: subprocess.Popen[bytes]
    started_at: float
    restarts: int = 0
    in_succession: int = 0
    restart_at: float | None = None
    tail: collections.deque[str] = field(default_factory=lambda: collections.deque(maxlen=LOG_TAIL_LINES))
    reader: threading.Thread | None = None
    ended: bool = False
    """True once the child has ended for good."""
    return_code: int = 0

    def root_cause(self, host: str) -> RootCause:
        """Return a root cause that says how this child ended."""
        exit_code, signal, phrase = describe_return_code(self.return_code)
        if self.restarts:
            phrase += f" after {self.restarts} restarts"
        if self.spec.restart and exit_code == FINAL_EXIT and self.tail:
            phrase += f" ({self.tail[-1]})"
        return RootCause(host, self.spec.name, phrase, self.process.pid, exit_code, signal, tuple(self.tail))


def spawn(spec: ChildSpec) -> subprocess.Popen[bytes]:
    """Start a child in its own session, with its own priority. It dies when this process dies."""
    try:
        process = subprocess.Popen(
            prctl.child_command(spec.argv, spec.nice),
            env=dict(spec.environ),
            cwd=spec.cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise SetupError(f"Cannot start the {spec.name} ({spec.argv[0]}): {error}") from error
    processes.own_child(process.pid)
    return process


class Supervisor:
    """The children of one host. Use as a context manager: on exit it ends them all."""

    def __init__(
        self,
        log: HostLog,
        max_restarts: int,
        grace_s: float,
        spawn: Callable[[ChildSpec], subprocess.Popen[bytes]] = spawn,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._max_restarts = max_restarts
        self._grace_s = grace_s
        self._spawn = spawn
        self._clock = clock
        self.children: list[Child] = []

    def __enter__(self) -> Supervisor:
        prctl.adopt_orphans()
        return self

    def __exit__(self, *_: object) -> None:
        self.teardown()

    def start(self, spec: ChildSpec) -> Child:
        """Start a child. Raises `SetupError` if that fails."""
        child = Child(spec, self._spawn(spec), self._clock())
        self.children.append(child)
        self._read(child)
        return child

    def poll(self) -> list[Child]:
        """Restart children whose restart is due; return those that have ended for good since the last call."""
        ended: list[Child] = []
        for child in self.children:
            if child.ended:
                continue
            if child.restart_at is not None:
                if self._clock() >= child.restart_at:
                    self._restart(child)
                continue
            code = child.process.poll()
            if code is None:
                continue
            if self._clock() - child.started_at > FORGIVEN_AFTER_S:
                child.in_succession = 0
            if child.spec.restart and code != FINAL_EXIT and child.in_succession < self._max_restarts:
                wait_s = min(FIRST_BACK_OFF_S * 2**child.in_succession, LONGEST_BACK_OFF_S)
                child.restart_at = self._clock() + wait_s
                phrase = describe_return_code(code)[2]
                self._log.say(f"{child.spec.name} (pid {child.process.pid}) {phrase}; restarting it in {wait_s:g} s")
            else:
                child.ended, child.return_code = True, code
                if child.reader:
                    child.reader.join(READ_REST_S)
                ended.append(child)
        return ended

    def restarts(self) -> dict[str, int]:
        """Return the number of restarts so far, by kind of server."""
        counts: collections.Counter[str] = collections.Counter()
        for child in self.children:
            if child.spec.restart:
                counts[child.spec.kind] += child.restarts
        return dict(counts)

    def running(self) -> list[tuple[str, str, int]]:
        """Return kind, name and pid of each child that is running."""
        running = [child for child in self.children if not child.ended and child.restart_at is None]
        return [(child.spec.kind, child.spec.name, child.process.pid) for child in running]

    def suspended(self) -> list[str]:
        """Return the names of the children that are suspended (SIGSTOP): alive, but doing nothing."""
        return [name for _, name, pid in self.running() if processes.is_stopped(pid)]

    def teardown(self) -> None:
        """End all children and their descendants: SIGTERM, one shared deadline, SIGKILL, reap."""
        for child in self.children:
            child.restart_at, child.ended = None, True
        killed = processes.end_all_descendants(self._grace_s)
        for child in self.children:
            child.process.poll()
            if child.reader:
                child.reader.join(READ_REST_S)
        if killed:
            self._log.say(f"{killed} processes did not end within {self._grace_s:g} s and were killed")

    def _restart(self, child: Child) -> None:
        child.restart_at = None
        child.restarts += 1
        child.in_succession += 1
        child.started_at = self._clock()
        child.process = self._spawn(child.spec)
        self._read(child)
        spec, pid = child.spec, child.process.pid
        self._log.event("restarted", role=spec.kind, pid=pid, name=spec.name, restarts=child.restarts)

    def _read(self, child: Child) -> None:
        """Read the child's output to its end in a thread, because a full pipe would block the child."""
        stream = child.process.stdout
        if stream is None:
            return
        spec = child.spec

        def pump() -> None:
            line = b""
            with stream:
                while raw := stream.readline(MAX_LINE_CHARS):
                    is_whole = raw.endswith(b"\n")
                    first, *over = (line + raw.rstrip(b"\r\n") if is_whole else line + raw).split(b"\r")
                    line = b"\r".join([first, *over[-1:]])  # mpirun's tag, and the last state of a progress bar
                    if is_whole or len(line) >= MAX_LINE_CHARS:
                        self._take_line(child, line.decode("utf-8", "replace"))
                        line = b""
            if line:
                self._take_line(child, line.decode("utf-8", "replace"))

        child.reader = threading.Thread(target=pump, name=f"read {spec.name}", daemon=True)
        child.reader.start()

    def _take_line(self, child: Child, line: str) -> None:
        spec = child.spec
        try:
            who, text = spec.label(line) if spec.label else (spec.name, line.rpartition("\r")[2])
            event = parse_event(text)
            if event and spec.on_event:
                spec.on_event(event)
        except Exception as error:  # one misread line must not end the reader: the pipe would fill and block the child
            who, text = spec.name, line
            self._log.say(f"cannot parse a line of {spec.name} ({type(error).__name__}: {error}); logging it unchanged")
        child.tail.append(text if who == spec.name else f"{who}: {text}")
        self._log.line(who, text)
