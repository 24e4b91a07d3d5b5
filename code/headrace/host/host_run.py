"""The run of one host, from the start of its servers to the end of its child processes."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType

from headrace.errors import SetupError
from headrace.frameworks import FRAMEWORKS
from headrace.host.host_plan import HostPlan, python_environ, trainer_environ
from headrace.host.inbox import HostAnswered, Inbox, MpiDaemonAsked, RankSaid, ServerSaid, Stamped, StopAsked
from headrace.host.log import HostLog
from headrace.host.mpi import mpirun
from headrace.host.mpi.orted import MpiDaemon, write_agent
from headrace.host.mpi.output import WITHOUT_A_WORD, RankLog
from headrace.host.mpi.rank_processes import dump_ranks, suspended_ranks
from headrace.host.mpi.toolkit import rank_command, without_mpi
from headrace.host.services.contract import DataService
from headrace.host.state import HostState
from headrace.host.supervisor import Child, ChildSpec, Supervisor
from headrace.host.usage.gpus import Gpus
from headrace.host.usage.host_usage import ResourceUsage
from headrace.job.settings import SECRET_VARIABLE
from headrace.outcome import RootCause
from headrace.rank import receipts
from headrace.rank.failure import first_failure
from headrace.training.signal_files import PAUSED

TICK_S = 0.2
PUBLISH_INTERVAL_S = 1.0
INSTALLER = "installer"
TRAINER = "trainer"


@dataclass
class HostRun:
    """A running host. The main loop (`Leader` or `follow`) calls `check_children` and `wait` in turn."""

    plan: HostPlan
    log: HostLog
    supervisor: Supervisor
    service: DataService
    state: HostState
    inbox: Inbox
    mpi_daemon: MpiDaemon
    ranks: RankLog
    started: float = field(default_factory=time.monotonic)
    listeners: list[Callable[[Stamped], None]] = field(default_factory=list)
    """Functions that `wait` calls with each event, after `state` has taken the event."""
    _next_publication: float = 0.0

    def start_servers(self) -> None:
        """Start this host's servers. If the trainer needs Horovod and it is missing, start its installation.

        Raises:
            SetupError: a server's port is taken.
        """
        plan, servers = self.plan, self.service.servers(self.plan.topology.current)
        for server in servers:
            for port in server.ports:
                check_port_free(port, server.name)
        environ = {**without_mpi(plan.environ), **python_environ(plan), SECRET_VARIABLE: plan.settings.secret}
        for server in servers:
            own = {"HEADRACE_SERVER_NAME": server.name, **server.environ}
            self.supervisor.start(
                ChildSpec(
                    server.kind,
                    server.name,
                    server.argv,
                    {**environ, **own},
                    plan.source_dir,
                    restart=True,
                    nice=server.nice,
                    on_event=lambda event: self.inbox.put(ServerSaid(event)),
                )
            )
        installer = FRAMEWORKS[plan.settings.framework].installer if plan.topology.current.role == "dnn" else None
        if installer and installer.is_needed(plan.source_dir, plan.environ):
            command = [sys.executable, "-u", "-m", installer.module, str(plan.source_dir)]
            environ = {**without_mpi(plan.environ), **mpirun.python_path(plan.source_dir, plan.environ)}
            self.supervisor.start(ChildSpec(INSTALLER, INSTALLER, command, environ, plan.source_dir))
            self.state.installing = True
        self.state.servers_started = True
        self.state.publish()

    def start_trainer(self) -> Child:
        """Start mpirun with all ranks. If SageMaker's toolkit has started mpirun, start only this launcher's rank."""
        plan = self.plan
        if plan.rank:
            command = rank_command(plan)
        else:
            script = [str(plan.source_dir / plan.settings.training_script), *plan.script_arguments]
            write_agent(plan.paths.work_dir)
            command = mpirun.trainer_command(
                plan.topology, plan.settings, plan.ranks_per_host, script, plan.paths.work_dir
            )
        spec = ChildSpec(
            TRAINER,
            plan.trainer_name,
            command,
            trainer_environ(plan, self.service.trainer_environ()),
            plan.source_dir,
            label=self.ranks.label,
            on_event=lambda event: self.inbox.put(RankSaid(event)),
        )
        return self.supervisor.start(spec)

    def check_children(self) -> None:
        """Restart servers that died. If a child has failed for good, record that as this host's failure."""
        for ended in self.supervisor.poll():
            cause = ended.root_cause(self.state.host)
            if ended.spec.kind == TRAINER and ended.return_code:
                self.state.fail(self.failed_rank(cause))
            elif ended.spec.restart or ended.return_code:
                self.state.fail(cause)
            elif ended.spec.kind == INSTALLER:
                self.state.installing = False
        self.state.restarts = self.supervisor.restarts()
        if self.state.dump_requested:
            self.state.dump_requested = False
            dump_ranks(self.log)
        self.state.usage.sample()
        if time.monotonic() >= self._next_publication:
            self._next_publication = time.monotonic() + PUBLISH_INTERVAL_S
            self.state.publish()

    def failed_rank(self, fallback: RootCause) -> RootCause:
        """Return the failure of the rank that failed first, from mpirun's output or else from the ranks' failure files.

        If SageMaker's toolkit starts the ranks, this launcher sees only one rank's output, so it prefers the files.
        """
        left = first_failure(self.plan.paths.signal_dir, self.state.host)
        if left and self.plan.rank:
            return left
        found = self.ranks.root_cause(fallback)
        return left if left and (found is fallback or WITHOUT_A_WORD in found.message) else found

    def wait(self, timeout_s: float = TICK_S) -> None:
        """Act on events for at most `timeout_s` seconds. Return early after any event except a host's new measurements.

        Raises:
            SetupError: the MPI daemon cannot be started.
        """
        end = time.monotonic() + timeout_s
        news = False
        while not news:
            happenings = self.inbox.take(max(end - time.monotonic(), 0.0))
            for stamped in happenings:
                self.state.take(stamped)
                for listener in self.listeners:
                    listener(stamped)
                news |= not isinstance(stamped[1], HostAnswered) or stamped[1].news
            # These come last, because an error here must not lose another event.
            for _, asked in happenings:
                if isinstance(asked, MpiDaemonAsked):
                    self._start_mpi_daemon(asked.arguments)
            if time.monotonic() >= end:
                return

    def wait_until(self, is_done: Callable[[], bool], limit_s: float) -> None:
        """Act on events until `is_done` returns True or `limit_s` seconds have passed."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline and not is_done():
            self.wait()

    def _start_mpi_daemon(self, arguments: tuple[str, ...]) -> None:
        environ = trainer_environ(self.plan, self.service.trainer_environ())
        argv = [mpirun.find_program(mpirun.ORTED), *arguments]
        self.supervisor.start(ChildSpec("mpi-daemon", mpirun.ORTED, argv, environ, self.plan.source_dir))


@contextlib.contextmanager
def host_run(plan: HostPlan, service: DataService, log: HostLog) -> Iterator[HostRun]:
    """Yield a running host; on exit end every child and remove the work folder.

    During the run, SIGTERM and SIGINT request the job's end. Once the job has ended, this process ignores them.
    """
    host, leader = plan.topology.current.name, plan.topology.leader.name
    inbox = Inbox()

    def stop(signum: int, _: FrameType | None) -> None:
        inbox.put(StopAsked(signal.Signals(signum).name))

    try:
        prepare_folders(plan)
        with Supervisor(log, plan.settings.max_restarts, plan.settings.grace_s) as supervisor:
            is_stepping = lambda: not any(plan.paths.signal_dir.glob(f"{PAUSED}*"))  # noqa: E731
            usage = ResourceUsage(
                supervisor.running,
                own_network=not plan.settings.endpoint(host).address.startswith("127."),
                gpus=Gpus(is_stepping) if plan.topology.current.role == "dnn" else None,
            )
            state = HostState(
                host,
                usage,
                service,
                inbox,
                suspended=lambda: supervisor.suspended() + suspended_ranks(),
                received=lambda: receipts.read(plan.paths.signal_dir),
            )
            for signum in (signal.SIGTERM, signal.SIGINT):
                signal.signal(signum, stop)
            daemon = MpiDaemon(plan.settings.endpoint(leader).address, plan.paths.work_dir, inbox)
            hosts_of_ranks = mpirun.hosts_of_ranks(plan.topology, plan.settings)
            ranks = RankLog(leader, hosts_of_ranks, plan.ranks_per_host, plan.trainer_name)
            yield HostRun(plan, log, supervisor, service, state, inbox, daemon, ranks)
    finally:
        shutil.rmtree(plan.paths.work_dir, ignore_errors=True)


def prepare_folders(plan: HostPlan) -> None:
    """Make the folders that a run writes to. Raises `SetupError` if one cannot be made or written."""
    shutil.rmtree(plan.paths.work_dir, ignore_errors=True)
    for folder in (plan.paths.work_dir, plan.paths.signal_dir, plan.paths.output_dir):
        try:
            if folder == plan.paths.work_dir:
                folder.mkdir(mode=0o700, parents=True)  # fails if another user made it first, as may be in /tmp
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise SetupError(f"Cannot write to {folder}: {error.strerror}; the job must write there") from error


def check_port_free(port: int, what: str) -> None:
    """Check that no process listens on the port (gRPC would share it silently). Raises `SetupError`."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Allow an earlier run's connections in TIME_WAIT; only a listener is in the way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))  # where the servers listen
            probe.listen(1)
        except OSError as error:
            in_use = f"Port {port} for the {what} is in use on this host ({error.strerror})"
            raise SetupError(f"{in_use}; end the program that listens there") from error
