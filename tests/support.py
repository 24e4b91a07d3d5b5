"""Functions that run jobs as users do, and find the processes that jobs leave behind."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from headrace.events import Event, parse_event

ROOT = Path(__file__).parents[1]
JOB_TIMEOUT_S = 1200
"""Seconds after which a job counts as hung. A small job takes half a minute. On two processors, ten jobs at once take
minutes."""
WAIT_S = 180.0
"""Seconds that a test waits for an event: a start, a log line or a file."""
_LOOPBACK = Path(tempfile.gettempdir()) / f"headrace-tests-{os.getuid()}-loopback"


@dataclass(frozen=True)
class Run:
    """A finished job: the exit code and output of start_job.py, and the run's folder."""

    code: int
    output: str
    folder: Path

    @property
    def summary(self) -> dict:
        return json.loads((self.folder / "summary.json").read_text())

    def log(self, host: str) -> str:
        return (self.folder / f"{host}.log").read_text()

    def events(self, name: str) -> list[Event]:
        """Return all events with this name, from the logs of all hosts."""
        lines = [line for path in sorted(self.folder.glob("*.log")) for line in path.read_text().splitlines()]
        return [event for event in map(parse_event, lines) if event and event.name == name]


def copy_source(folder: Path, *scripts: Path) -> Path:
    """Copy `code` to `folder`, add scripts beside the training scripts, and return `folder`."""
    shutil.copytree(ROOT / "code", folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for script in scripts:
        shutil.copy(script, folder)
    return folder


def start(
    tmp_path: Path, *flags: str, job_name: str = "", python: str | Path = sys.executable, **popen: object
) -> tuple[subprocess.Popen, Path]:
    """Start start_job.py for a job on this machine; return its process and the run's folder."""
    job_name = job_name or f"job-{uuid.uuid4().hex[:8]}"
    command = [str(python), str(ROOT / "start_job.py"), "--no-is_cloud_job", f"--job_name={job_name}"]
    process = subprocess.Popen(
        [*command, f"--output_dir={tmp_path}", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        **popen,
    )
    return process, tmp_path / job_name


def finish(process: subprocess.Popen, folder: Path, timeout_s: float = JOB_TIMEOUT_S) -> Run:
    """Wait for the job's end, and check that it left no process behind."""
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        raise AssertionError(f"the job hung; it had said:\n{output[-4000:]}") from None
    run = Run(process.returncode, output, folder)
    assert processes_of(folder.name) == [], f"left behind by {folder.name}:\n{output[-2000:]}"
    return run


@contextlib.contextmanager
def own_ports() -> Iterator[None]:
    """Context in which no other test uses this machine's fixed ports (6000, 6001, 16000 ...)."""
    with _LOOPBACK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run_job(tmp_path: Path, *flags: str, timeout_s: float = JOB_TIMEOUT_S, **popen: object) -> Run:
    """Run a job to its end. Jobs on loopback addresses share this machine's ports, so only one runs at a time."""
    with contextlib.ExitStack() as stack:
        if "--isolation=loopback" in flags:
            stack.enter_context(own_ports())
        return finish(*start(tmp_path, *flags, **popen), timeout_s=timeout_s)


def processes_of(job_name: str) -> list[psutil.Process]:
    """Return the living processes of a job, found by the job's name in their environment."""
    found = []
    psutil.process_iter.cache_clear()  # an id may belong to another process by now
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get("TRAINING_JOB_NAME") == job_name:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def process_of(job_name: str, host: str, words: str) -> psutil.Process:
    """Return the host's process whose command line matches `words`. Forks of the process match too, but are skipped."""
    found = {}
    for process in processes_of(job_name):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.environ().get("SM_CURRENT_HOST") == host and re.search(words, " ".join(process.cmdline())):
                found[process.pid] = process, process.ppid()
    for process, parent in found.values():
        if parent not in found:  # the lowest id may be a child's, since ids wrap around
            return process
    raise AssertionError(f"no process {words!r} on {host}")


def wait_for(condition, what: str, timeout_s: float = WAIT_S):
    """Return the first true value of `condition`; after `timeout_s`, fail with `what` in the message."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(f"{what} did not happen within {timeout_s:g} s")


def wait_for_port(port: int, process: subprocess.Popen, timeout_s: float = WAIT_S) -> None:
    """Wait until something listens on the port. Fail if `process`, which should listen, ends."""

    def listens():
        assert process.poll() is None, f"{process.args} ended with {process.returncode}"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    wait_for(listens, f"a listener on port {port}", timeout_s)


def namespaces_allowed() -> bool:
    probe = subprocess.run(["unshare", "-Urn", "true"], capture_output=True, check=False)
    return probe.returncode == 0 and os.path.exists("/proc/self/ns/net")
