"""Make a Slurm job's folder, submit the job, print its states and logs, and cancel it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from headrace.backends.slurm.batch_script import BATCH_LOG, build_script
from headrace.backends.slurm.slurm_options import SlurmOptions
from headrace.cluster.run_files import CHECKPOINTS, RunPaths
from headrace.cluster.slurm import LAUNCHER_PREFIXES, SECRET_FILE
from headrace.errors import InputError, SetupError
from headrace.job.source import host_files, write_files
from headrace.job.spec import JobSpec

SCRIPT = "job.sbatch"
POLL_S, LOG_POLL_S = 5.0, 0.5
COMMAND_TIMEOUT_S = 60.0
GIVE_UP_S = 3600.0
"""Seconds to wait for Slurm to answer again before giving up. A restart of slurmctld takes less."""
UNFINISHED = ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "COMPLETING", "REQUEUED", "REQUEUE_HOLD", "STOPPED",
              "STAGE_OUT", "SIGNALING", "RESIZING")  # fmt: skip
_OURS = ("SLURM_CONF", "SLURM_CLUSTERS")


def write_run(spec: JobSpec, options: SlurmOptions, checkpoints: Path | None) -> Path:
    """Make the run's folder with code, secret, checkpoints and script; return the script's path.

    Raises:
        InputError: the folder exists already, or cannot be made.
    """
    run = options.run
    RunPaths(run).make()
    try:
        write_files(host_files(spec.source_dir, spec.left_out), run / "code")
        if checkpoints:
            checkpoints.mkdir(parents=True, exist_ok=True)
            (run / CHECKPOINTS).symlink_to(checkpoints)
        else:
            (run / CHECKPOINTS).mkdir()
        with open(os.open(run / SECRET_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32) + "\n")
        (run / SCRIPT).write_text(build_script(spec, options))
    except OSError as error:
        shutil.rmtree(run, ignore_errors=True)
        raise InputError(f"cannot write the run's folder {run}: {error.strerror or error}") from error
    return run / SCRIPT


def submit(script: Path) -> str:
    """Submit a run's script; return the job's number in Slurm.

    Raises:
        SetupError: Slurm refuses the job. The run's folder is removed, so that its name can be used again.
    """
    try:
        return _slurm("sbatch", "--parsable", str(script)).strip().partition(";")[0]
    except SetupError:
        shutil.rmtree(script.parent, ignore_errors=True)
        raise


class Follower:
    """Follows one job until it ends.

    Args:
        say: prints a line.
        sleep: waits, and may raise `KeyboardInterrupt`.
    """

    def __init__(
        self, job_id: str, run: Path, say: Callable[[str], None], sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._job_id, self._run, self._say, self._sleep = job_id, run, say, sleep
        self._read: dict[str, int] = {}
        self._groups: dict[str, str] = {}
        self._told = ""

    def wait(self) -> str:
        """Print states and log lines until the job has ended; return its last state in Slurm's words.

        Raises:
            SetupError: Slurm has not answered for an hour. The job goes on.
        """
        answered = time.monotonic()
        while True:
            try:
                state = job_state(self._job_id)
                answered = time.monotonic()
            except SetupError as error:
                if time.monotonic() - answered > GIVE_UP_S:
                    raise SetupError(f"{error}; to stop the job: scancel {self._job_id}") from error
                state = self._told
            if state != self._told:
                self._say(f"job {self._job_id}: {state}")
                self._told = state
            if state.partition(" ")[0] not in UNFINISHED:
                self.read_logs()
                return state
            until = time.monotonic() + POLL_S
            while time.monotonic() < until:
                self.read_logs()
                self._sleep(LOG_POLL_S)

    def cancel(self) -> None:
        """Cancel the job. Slurm sends SIGTERM to the hosts, and SIGKILL after the seconds in its setting `KillWait`."""
        _slurm("scancel", self._job_id)

    def read_logs(self) -> None:
        """Print new log lines, each with a label: its host's name and group, or `slurm` for the batch script's log."""
        with contextlib.suppress(OSError):
            for path in sorted(self._run.glob("*.log"), key=self._order):
                with path.open("rb") as file:
                    file.seek(self._read.get(path.name, 0))
                    new = file.read()
                end = new.rfind(b"\n") + 1
                self._read[path.name] = self._read.get(path.name, 0) + end
                for line in new[:end].decode("utf-8", "replace").splitlines():
                    self._say(self._labelled(path, line))

    def _order(self, path: Path) -> tuple[str, str]:
        return self._groups.get(path.stem, ""), path.name

    def _labelled(self, path: Path, line: str) -> str:
        if path.name == BATCH_LOG:
            return f"slurm | {line}"
        if "event=topology " in line:
            self._groups[path.stem] = line.partition(" group=")[2].partition(" ")[0]
        return f"{path.stem} {self._groups.get(path.stem, '?')} | {line}"


def job_state(job_id: str) -> str:
    """Return a job's state and Slurm's reason for it. Raises `SetupError` if Slurm does not answer.

    A heterogeneous job has a state for each component. Return the state of an unfinished component, else of a failed
    one, else of any. If Slurm does not know the job any more, return `GONE`.
    """
    try:
        told = _slurm("squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%T %r")
    except SetupError as error:
        if "Invalid job id" not in str(error):
            raise
        told = ""
    states = [line.strip().removesuffix(" None") for line in told.splitlines() if line.strip()]
    running = [state for state in states if state.partition(" ")[0] in UNFINISHED]
    failed = [state for state in states if not state.startswith("COMPLETED")]
    return next(iter([*running, *failed, *states]), "GONE")


def host_failure(run: Path) -> str:
    """Return the earliest failure that a host has written, as `HOST: MESSAGE`; empty if there is none."""
    files = sorted(run.glob("*/output/failure"), key=lambda path: path.stat().st_mtime)
    return f"{files[0].parts[-3]}: {files[0].read_text(errors='replace').splitlines()[0]}" if files else ""


def outcome_of(run: Path) -> str | None:
    """Return the outcome in the job's summary; None if the leader left none."""
    try:
        return str(json.loads(RunPaths(run).summary.read_text(encoding="utf-8"))["outcome"])
    except (OSError, ValueError, LookupError):
        return None


def _slurm(*command: str) -> str:
    # sbatch passes its environment on. A job submitted from inside another job must not mistake itself for that job.
    foreign = (*LAUNCHER_PREFIXES, "SM_", "HEADRACE_")
    environ = {name: value for name, value in os.environ.items() if name in _OURS or not name.startswith(foreign)}
    try:
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, start_new_session=True
        )
    except FileNotFoundError as error:
        raise SetupError(f"{command[0]} is not installed here; submit from a login node of the cluster") from error
    except subprocess.TimeoutExpired as error:
        raise SetupError(f"{command[0]} has not answered within {COMMAND_TIMEOUT_S:g} s; try scontrol ping") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise SetupError(f"{command[0]}: {lines[-1]}")
    return done.stdout
