"""One host's part in the job, from its servers' start to its exit code."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType

from headrace.errors import SetupError
from headrace.events import Event
from headrace.host import install, mpi, services
from headrace.host.daemon import MpiDaemon
from headrace.host.log import HostLog
from headrace.host.plan import HostPlan, server_environ, trainer_environ
from headrace.host.ranks import dump_ranks, suspended_ranks
from headrace.host.state import HostState
from headrace.host.supervise import Child, ChildSpec, Supervisor
from headrace.host.toolkit import rank_command, without_mpi
from headrace.host.usage import HostUsage

TICK_S = 0.2
INSTALLER = "installer"
TRAINER = "trainer"


@dataclass
class HostRun:
    """A host while it runs: its children, its state, and the signals that it got."""

    plan: HostPlan
    log: HostLog
    supervisor: Supervisor
    service: services.DataService
    state: HostState
    wake: threading.Event
    mpi_daemon: MpiDaemon
    ranks: mpi.RankLog
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
        environ = {**without_mpi(self.plan.environ), **server_environ(self.plan)}
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

    def start_trainer(self, on_event: Callable[[Event], None] | None = None) -> Child:
        """Start mpirun with all ranks; or, where the toolkit has, the one rank as which it started this launcher."""
        plan, environ = self.plan, self.trainer_environ()
        if plan.rank:
            command = rank_command(plan)
        else:
            script = [str(plan.source_dir / plan.settings.training_script), *plan.script_arguments]
            command = mpi.trainer_command(plan.topology, plan.settings, plan.ranks_per_host, script, plan.work_dir)
        label = self.ranks.label
        return self.supervisor.start(
            ChildSpec(TRAINER, plan.trainer_name, command, environ, plan.source_dir, label=label, on_event=on_event)
        )

    def start_mpi_daemon(self) -> None:
        """Start it when the leader's mpirun has asked this host for it."""
        arguments = self.mpi_daemon.take()
        if arguments is not None:
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
            cause = ended.root_cause(self.state.host)
            if ended.spec.role == TRAINER and ended.return_code:
                self.state.fail(self.ranks.root_cause(cause))
            elif ended.spec.role in ("dispatcher", "worker") or ended.return_code:
                self.state.fail(cause)
            elif ended.spec.role == INSTALLER:
                self.state.set_installing(False)
        self._tell_protocol()
        self.state.set_restarts(self.supervisor.restarts())
        if self.state.take_dump_request():
            dump_ranks(self.log)
        self.state.usage.sample()
        self.state.kernel_kills.watch()

    def _tell_protocol(self) -> None:
        """Leave what the leader has decided where this host's ranks and workers look for it."""
        path = self.plan.protocol_file
        if self.state.protocol and not path.exists():
            partial = path.with_suffix(".partial")
            partial.write_text(self.state.protocol, encoding="utf-8")
            partial.rename(path)

    def wait(self) -> None:
        """Until something happens, or the next tick."""
        self.wake.wait(TICK_S)
        self.wake.clear()


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
            leader = plan.settings.endpoint(plan.topology.leader.name).address
            daemon = MpiDaemon(leader, plan.work_dir, wake.set)
            hosts_of_ranks = mpi.hosts_of_ranks(plan.topology, plan.settings)
            ranks = mpi.RankLog(plan.topology.leader.name, hosts_of_ranks, plan.ranks_per_host, plan.trainer_name)
            yield HostRun(plan, log, supervisor, service, state, wake, daemon, ranks)
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
