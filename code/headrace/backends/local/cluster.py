"""Run a job on simulated hosts, from its spec to its summary and exit codes."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from headrace import __version__
from headrace.backends.local import opt_ml
from headrace.backends.local.collect_results import collect
from headrace.backends.local.log_console import Console, open_log
from headrace.backends.local.loopback import Loopback
from headrace.backends.local.namespaces import Namespaces
from headrace.cluster.run_files import RunPaths, write_json
from headrace.errors import InputError, SetupError
from headrace.job.settings import MPI_OPTIONS_VARIABLE, SECRET_VARIABLE, VERSION_VARIABLE
from headrace.job.source import refuse_too_much, source_files
from headrace.job.spec import JobSpec
from headrace.linux import prctl, processes

LEFT_BEHIND_TIMEOUT_S = 60.0
"""Seconds until hosts that still run are killed. The count starts when the leader, or every other host, has ended."""
INTERRUPT_GRACE_S = 120.0
"""Seconds from SIGTERM to SIGKILL after an interrupt, as on SageMaker. A second interrupt kills the hosts at once."""
KILL_GRACE_S = 2.0
POLL_S = 0.05
_FOREIGN_PREFIXES = (
    *("SM_", "HEADRACE_", "OMPI_", "PMIX_", "PMI_", "SAGEMAKER_", "TRAINING_JOB_", "PYTHONPATH"),
    *("SLURM_", "PBS_", "LSB_", "FLUX_", "PE_HOSTFILE"),  # mpirun would use the nodes of the shell's allocation
    *("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "UCX_NET_DEVICES"),  # interfaces that simulated hosts do not have
)
"""Prefixes of environment variables that the simulated hosts do not inherit."""


@dataclass(frozen=True)
class LocalOptions:
    """Options of a run on this machine, validated when they are made."""

    output_dir: Path
    isolation: str = "auto"
    cpus: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Processors that each group may use. A group without an entry may use all."""
    checkpoints: str | None = None
    """The folder that all hosts see as /opt/ml/checkpoints; made if missing. None: a separate folder for each host."""

    def __post_init__(self) -> None:
        present = os.sched_getaffinity(0)
        for group, cpus in self.cpus.items():
            if missing := sorted(cpus - present):
                here = ",".join(map(str, sorted(present)))
                raise InputError(f"--cpus {group}: this machine has no processor {missing[0]}; it has {here}")


def run_job(spec: JobSpec, options: LocalOptions, console: Console) -> dict[str, Any]:
    """Run the job to its end and return the summary. The run's files are in `output_dir/job_name`.

    Raises:
        InputError: the job's folder exists already, or a channel's folder is missing.
        SetupError: this machine does not allow the requested isolation.
    """
    folder = options.output_dir.resolve() / spec.job_name
    for channel in spec.channels:
        opt_ml.channel_path(channel)
    refuse_too_much(spec.source_dir, source_files(spec.source_dir, spec.left_out))
    checkpoints = None if options.checkpoints is None else opt_ml.checkpoint_path(options.checkpoints, spec.source_dir)
    if options.isolation != "loopback":
        opt_ml.refuse_hidden(filter(None, [folder, checkpoints, *map(opt_ml.channel_path, spec.channels)]))
    RunPaths(folder).make()
    try:
        for host in spec.hosts():
            opt_ml.write_host_folder(folder / host, spec, host, checkpoints)
    except OSError as error:  # includes shutil.Error, which lists several files
        shutil.rmtree(folder, ignore_errors=True)
        raise InputError(f"cannot write the hosts' folders in {folder}: {error.strerror or error}") from error
    prctl.adopt_orphans()
    with _isolation(spec, options, folder, console) as isolation:
        shown = options.output_dir / spec.job_name
        console.say(f"{spec.job_name}: {len(spec.hosts())} hosts {isolation.description}; logs in {shown}")
        cluster = _Cluster(spec, options, folder, isolation, console)
        try:
            with console.display:
                exit_codes = cluster.run()
        finally:
            processes.end_all_descendants(KILL_GRACE_S, spare=cluster.spared)
    summary = collect(spec, folder, exit_codes, cluster.killed, cluster.interrupts > 0)
    try:
        write_json(RunPaths(folder).summary, summary)
    except OSError as error:
        console.say(f"{spec.job_name} {summary['outcome']}, but writing its summary failed: {error.strerror}")
    return summary


@contextlib.contextmanager
def _isolation(spec: JobSpec, options: LocalOptions, folder: Path, console: Console) -> Iterator[Namespaces | Loopback]:
    """Yield the requested isolation; with `auto`, namespaces if the machine allows them, else loopback addresses."""
    hosts = list(spec.hosts())
    with contextlib.ExitStack() as stack:
        chosen: Namespaces | Loopback = Loopback(folder, hosts, spec.num_of_data_workers)
        if options.isolation != "loopback":
            try:
                chosen = stack.enter_context(Namespaces(folder, hosts, spec.job_name))
            except SetupError as error:
                if options.isolation == "namespaces":
                    raise SetupError(
                        f"this machine does not allow namespaces ({error}); use --isolation loopback"
                    ) from error
                console.say(f"namespaces are not allowed here ({error}); simulating hosts on loopback addresses")
        yield chosen


class _Cluster:
    """The hosts of one running job."""

    def __init__(
        self, spec: JobSpec, options: LocalOptions, folder: Path, isolation: Namespaces | Loopback, console: Console
    ) -> None:
        self._spec, self._options, self._folder = spec, options, folder
        self._isolation, self._console = isolation, console
        self._hosts: dict[str, subprocess.Popen[bytes]] = {}
        self._readers: list[threading.Thread] = []
        self._secret = secrets.token_hex(32)
        self.interrupts = 0
        self.killed: list[str] = []
        self.spared = {process.pid for process in processes.descendants()}  # processes of the isolation

    def run(self) -> dict[str, int]:
        """Run the hosts to their end; return their exit codes by host."""

        def interrupt(signum: int, _: FrameType | None) -> None:
            self.interrupts += 1

        previous = {signum: signal.signal(signum, interrupt) for signum in (signal.SIGINT, signal.SIGTERM)}
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # SIG_IGN: under nohup
            previous[signal.SIGHUP] = signal.signal(signal.SIGHUP, interrupt)
        try:
            for host in self._spec.hosts():
                self._start(host)
            self._wait()
        finally:
            for signum, handler in previous.items():
                signal.signal(signum, handler)
            self._end_all()
        codes = {host: process.returncode for host, process in self._hosts.items()}
        return {host: 128 - code if code < 0 else code for host, code in codes.items()}  # signal N: 128 + N

    def _start(self, host: str) -> None:
        base_dir = self._isolation.base_dir(host)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN_PREFIXES)}
        programs = sysconfig.get_path("scripts")
        environ = {
            **inherited,
            **opt_ml.toolkit_environ(self._spec, host, base_dir),
            **self._isolation.environ(),
            SECRET_VARIABLE: self._secret,
            VERSION_VARIABLE: __version__,
            MPI_OPTIONS_VARIABLE: self._spec.custom_mpi_options,
            "PATH": f"{programs}:{inherited.get('PATH', os.defpath)}",
        }
        argv = [sys.executable, str(base_dir / "code" / "launcher.py"), *opt_ml.script_arguments(self._spec)]
        command = self._isolation.command(host, self._folder / host, argv)
        process = subprocess.Popen(
            prctl.child_command(command, cpus=self._options.cpus.get(self._spec.hosts()[host].name, ())),
            env=environ,
            cwd=self._folder / host / "code",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        processes.own_child(process.pid)
        self._hosts[host] = process
        reader = threading.Thread(target=self._read, args=(host, process), name=f"read {host}", daemon=True)
        reader.start()
        self._readers.append(reader)

    def _read(self, host: str, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as stream, open_log(self._folder, host) as file:
            for raw in stream:
                self._console.host_line(host, raw.decode("utf-8", "replace").rstrip("\r\n"), file)

    def _wait(self) -> None:
        """Wait until all hosts have ended. If some must be killed, put their names into `killed` and return."""
        leader = next(host for host, group in self._spec.hosts().items() if group == self._spec.dnn_group)
        decided: float | None = None
        asked: float | None = None
        while running := [host for host, process in self._hosts.items() if process.poll() is None]:
            now = time.monotonic()
            if decided is None and (leader not in running or (running == [leader] and len(self._hosts) > 1)):
                decided = now
            if decided is not None and now - decided > LEFT_BEHIND_TIMEOUT_S:
                self._console.say(f"killing {', '.join(running)}: still running after other hosts have ended")
                self.killed = running
                return
            if self.interrupts and asked is None:
                asked = now
                self._console.say("interrupted: ending the hosts (interrupt again to kill them)")
                self._signal(signal.SIGTERM)
            if asked is not None and (self.interrupts > 1 or now - asked > INTERRUPT_GRACE_S):
                self._console.say(f"killing {', '.join(running)}")
                self.killed = running
                return
            time.sleep(POLL_S)

    def _signal(self, signum: int) -> None:
        for process in self._hosts.values():
            if process.poll() is None:
                process.send_signal(signum)

    def _end_all(self) -> None:
        self._signal(signal.SIGKILL)
        for process in self._hosts.values():
            process.wait()
        processes.end_all_descendants(KILL_GRACE_S, spare=self.spared)
        for reader in self._readers:
            reader.join(KILL_GRACE_S)
