"""One host's part in the job, from its servers' start to its exit code."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from headrace.context import TrainerContext
from headrace.errors import SetupError
from headrace.host import install, mpi, services
from headrace.host.log import HostLog
from headrace.host.ranks import dump_ranks, suspended_ranks
from headrace.host.send import HOSTS_VARIABLE, TIMEOUT_VARIABLE
from headrace.host.state import HostState
from headrace.host.supervise import Child, ChildSpec, Supervisor
from headrace.host.toolkit import ToolkitRank, rank_command, without_mpi
from headrace.host.usage import HostUsage
from headrace.settings import CONTROL_PORT, SECRET_VARIABLE, Settings
from headrace.topology import Topology

TICK_S = 0.2
INSTALLER = "installer"
WORK_FOLDER = "headrace"
"""This run's working files under the base folder; gone when the host ends."""


@dataclass(frozen=True)
class HostPlan:
    """All that a host needs to know before it starts anything."""

    topology: Topology
    settings: Settings
    source_dir: Path
    script_arguments: Sequence[str]
    environ: Mapping[str, str]
    rank: ToolkitRank | None = None
    """Set when the SageMaker toolkit's mpirun started this launcher as one of its ranks."""

    @property
    def work_dir(self) -> Path:
        return self.settings.base_dir / WORK_FOLDER

    @property
    def signal_dir(self) -> Path:
        return self.work_dir / "signals"

    @property
    def output_dir(self) -> Path:
        return self.settings.base_dir / "output" / "data"

    @property
    def tf_data_mode(self) -> str:
        return services.effective_mode(self.topology, self.settings)

    @property
    def ranks_per_host(self) -> int:
        return self.settings.processes_per_host or int(self.environ.get("SM_NUM_GPUS") or 0) or 1


@dataclass
class HostRun:
    """A host while it runs: its children, its state, and the signals that it got."""

    plan: HostPlan
    log: HostLog
    supervisor: Supervisor
    service: services.DataService
    state: HostState
    wake: threading.Event
    started: float = field(default_factory=time.monotonic)

    def start_servers(self) -> None:
        """Start this host's dispatcher and workers.

        Raises:
            SetupError: one of their ports is taken.
        """
        servers = self.service.servers()
        for server in servers:
            for port in server.ports:
                check_port_free(port, server.name)
        environ = {**without_mpi(self.plan.environ), **python_environ(self.plan), "CUDA_VISIBLE_DEVICES": "-1"}
        for server in servers:
            self.supervisor.start(
                ChildSpec(
                    server.role,
                    server.name,
                    server.argv,
                    {**environ, "HEADRACE_SERVER_NAME": server.name},
                    self.plan.source_dir,
                    restart=True,
                    nice=server.nice,
                    on_event=self.state.take_event,
                )
            )

        if self.plan.topology.current.role == "dnn" and install.is_needed(self.plan.source_dir, self.plan.environ):
            command = install.install_command(self.plan.source_dir)
            environ = {**without_mpi(self.plan.environ), **mpi.python_path(self.plan.source_dir, self.plan.environ)}
            self.supervisor.start(ChildSpec(INSTALLER, INSTALLER, command, environ, self.plan.source_dir))
            self.state.set_installing(True)

    def start_rank(self, **how: Any) -> Child:
        """Start the rank as which the toolkit started this launcher."""
        command, environ = rank_command(self.plan), self.trainer_environ()
        return self.supervisor.start(ChildSpec("trainer", mpi.MPIRUN, command, environ, self.plan.source_dir, **how))

    def start_mpi_daemons(self) -> None:
        """Start what the leader's mpirun asked this host for."""
        for arguments in self.state.take_commands():
            argv = mpi.daemon_command(arguments)
            self.supervisor.start(
                ChildSpec("mpi-daemon", mpi.ORTED, argv, self.trainer_environ(), self.plan.source_dir)
            )

    def trainer_environ(self) -> dict[str, str]:
        """The environment of mpirun, MPI daemons and ranks on this host."""
        return trainer_environ(self.plan, self.service)

    def check_children(self) -> None:
        """Restart servers that died; record as this host's failure what cannot be restarted."""
        for ended in self.supervisor.poll():
            if ended.spec.role in ("dispatcher", "worker") or ended.return_code:
                self.state.fail(ended.root_cause(self.state.host))
            elif ended.spec.role == INSTALLER:
                self.state.set_installing(False)
        self.state.set_restarts(self.supervisor.restarts())
        if self.state.take_dump_request():
            dump_ranks(self.log)
        self.state.usage.sample()
        self.state.kernel_kills.watch()

    def wait(self) -> None:
        """Until something happens, or the next tick."""
        self.wake.wait(TICK_S)
        self.wake.clear()


def trainer_environ(plan: HostPlan, service: services.DataService) -> dict[str, str]:
    """The environment of mpirun, MPI daemons and ranks on this host."""
    settings = plan.settings
    context = TrainerContext(
        tf_data_mode=plan.tf_data_mode,
        dispatcher=service.address(),
        job_name=settings.job_name or "headrace",
        output_dir=plan.output_dir,
        model_dir=settings.base_dir / "model",
        checkpoint_dir=settings.base_dir / "checkpoints",
        signal_dir=plan.signal_dir,
    )
    names = {settings.endpoint(host.name).address: host.name for host in plan.topology.hosts}
    return {
        **plan.environ,
        **python_environ(plan),
        **mpi.mpi_environ(plan.source_dir, plan.environ),
        **context.environ(),
        SECRET_VARIABLE: settings.secret,
        # Horovod names the ranks that an allreduce waits for. It must do so before the stall watchdog acts, and takes
        # up to three of these: one to begin, one to forget what it had cached.
        "HOROVOD_STALL_CHECK_TIME_SECONDS": str(max(int(settings.stall_timeout_s / 5), 1)),
        # The second line of defence: Horovod ends the ranks itself, should nobody else.
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": str(int(settings.stall_timeout_s * 2) + 60),
        HOSTS_VARIABLE: ",".join(f"{name}={address}:{CONTROL_PORT}" for address, name in names.items()),
        TIMEOUT_VARIABLE: f"{settings.startup_timeout_s:g}",
        "HEADRACE_HOST_NAMES": ",".join(f"{address}={name}" for address, name in names.items()),
    }


def python_environ(plan: HostPlan) -> dict[str, str]:
    """What every Python child of this host gets."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": plan.environ.get("TF_CPP_MIN_LOG_LEVEL", "2")}
    # Temporary files go where they are removed even when their process is killed.
    return {"SM_CURRENT_HOST": plan.topology.current.name, "TMPDIR": str(plan.work_dir), **quiet}


@contextlib.contextmanager
def host_run(plan: HostPlan, log: HostLog) -> Iterator[HostRun]:
    """A running host with its signal handlers; leaving it ends every child and removes the working files."""
    wake = threading.Event()
    host = plan.topology.current.name
    prepare_folders(plan)
    with Supervisor(log, plan.settings.max_restarts, plan.settings.grace_s) as supervisor:
        usage = HostUsage(
            lambda: [(child.spec.role, child.process.pid) for child in list(supervisor.children) if not child.ended]
        )
        state = HostState(host, usage, wake, lambda: supervisor.suspended() + suspended_ranks())

        def stop(signum: int, _: FrameType | None) -> None:
            state.request_stop(signal.Signals(signum).name)

        handled = {signal.SIGTERM: stop, signal.SIGINT: stop}
        previous = {signum: signal.signal(signum, handler) for signum, handler in handled.items()}
        service = services.data_service(plan.topology, plan.settings, plan.source_dir, plan.work_dir)
        try:
            yield HostRun(plan, log, supervisor, service, state, wake)
        finally:
            supervisor.teardown()
            for signum, handler in previous.items():
                signal.signal(signum, handler)
            shutil.rmtree(plan.work_dir, ignore_errors=True)


def prepare_folders(plan: HostPlan) -> None:
    """The folders that a run writes to. Raises `SetupError` when one cannot be made or written."""
    shutil.rmtree(plan.work_dir, ignore_errors=True)
    for folder in (plan.work_dir, plan.signal_dir, plan.output_dir):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / ".writable"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise SetupError(f"Cannot write to {folder}: {error.strerror}") from error


def check_port_free(port: int, what: str) -> None:
    """Raises `SetupError` when something listens on the port already (gRPC would share it silently)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Connections of an earlier run that linger in TIME_WAIT are no obstacle; a listener is.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))  # where TensorFlow's servers listen
            probe.listen(1)
        except OSError as error:
            raise SetupError(f"Port {port} for the {what} is in use on this host ({error.strerror})") from error


def control_address(settings: Settings, host: str) -> str:
    return f"{settings.endpoint(host).bind_address}:{CONTROL_PORT}"
