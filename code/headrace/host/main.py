"""The launcher's main function: read the topology and the settings, run this host, exit with the job's outcome."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace import __version__
from headrace.cluster import slurm
from headrace.cluster.run_files import ARRAYS_FOLDER, HostPaths
from headrace.cluster.sagemaker import read_topology
from headrace.cluster.topology import Host, Topology
from headrace.errors import HeadraceError, InputError
from headrace.host.control.channel import ControlServer, Handler
from headrace.host.control.file_receiver import FileKeeper
from headrace.host.control.secret import with_secret
from headrace.host.failures import cause_of, leave, write_failure
from headrace.host.follower import follow
from headrace.host.host_plan import HostPlan, trainer_environ
from headrace.host.host_run import host_run
from headrace.host.leader.lead import Leader
from headrace.host.log import HostLog
from headrace.host.mpi.toolkit import become_rank, check_rank, toolkit_rank
from headrace.host.script_arguments import script_arguments
from headrace.host.services import data_service
from headrace.host.services.contract import DataService
from headrace.job.settings import VERSION_VARIABLE, read_base_dir, read_settings
from headrace.linux import prctl
from headrace.outcome import Outcome
from headrace.terminal.display import print_every_character

HELP = """usage: launcher.py [--NAME VALUE ...] | --describe

Runs this host's part of a headrace job. SageMaker starts it on every host with the job's hyperparameters as
--NAME VALUE. The training script gets those that are not settings of the launcher. --describe prints the topology
(JSON on standard output, a table on standard error) and runs nothing."""


def main(argv: Sequence[str], environ: Mapping[str, str], entry: str) -> int:
    """Run the launcher and return its exit code. `entry` is the path of launcher.py, which lies in the source dir."""
    # Only a lone `-h` asks for help: a hyperparameter may be named `h`, but a value follows its name.
    if list(argv) in (["-h"], ["--help"]):
        print(HELP)
        return 0
    prctl.allow_open_files()  # clients can open many connections before they authenticate
    describe = list(argv) == ["--describe"]
    try:
        if slurm.RUN_VARIABLE in environ:
            environ = slurm.enter_host(environ)
        settings = read_settings([] if describe else argv, environ)
        topology = read_topology(settings.base_dir, environ)
        if describe:
            print(topology.table(), file=sys.stderr)
            print(json.dumps(topology.describe(), indent=2))
            return 0
        source_dir = Path(entry).resolve().parent
        if not (source_dir / settings.training_script).is_file():
            raise InputError(f"training_script {settings.training_script!r} is not in {source_dir}; name a file there")
        rank = toolkit_rank(environ)
        if rank:
            check_rank(rank, topology)
        arguments = script_arguments(argv, HostPaths(settings.base_dir).hyperparameters)
        plan = HostPlan(topology, with_secret(settings, topology, environ, rank), source_dir, arguments, environ, rank)
        plan.refuse_open_launch()
        service = data_service(plan)
    except HeadraceError as error:
        print(f"launcher.py: error: {error}", file=sys.stderr)
        write_failure(HostPaths(read_base_dir(environ)), str(error))
        return error.exit_code
    if rank and rank.local:
        become_rank(plan, trainer_environ(plan, service.trainer_environ()))
    return run_host(plan, service)


def run_host(plan: HostPlan, service: DataService) -> int:
    """Run this host until the job ends; return the exit code of the job's outcome."""
    host = plan.topology.current.name
    log = HostLog(host)
    try:
        with host_run(plan, service, log) as run:
            _log_topology(plan.topology, service, log)
            if (submitted := plan.environ.get(VERSION_VARIABLE) or __version__) != __version__:
                log.say(
                    f"this host has headrace {__version__}, but the job was submitted with {submitted}; use the same "
                    "version in the source dir and in the installation"
                )
            keeper = FileKeeper(plan.paths.work_dir / ARRAYS_FOLDER)
            handlers: dict[str, Handler] = {"renew": run.state.renew, "has": keeper.has}
            if plan.takes_mpi_daemon:
                handlers["start_mpi_daemon"] = run.mpi_daemon.ask
            endpoint = plan.settings.endpoint(host)
            address = f"{endpoint.bind_address}:{endpoint.control_port}"
            with ControlServer(address, host, plan.settings.secret, handlers, log, {"keep": keeper.keep}):
                outcome = Leader(run).lead() if plan.topology.is_leader else follow(run)
    except Exception as error:  # the host ends with an outcome, whatever failed
        outcome = Outcome(cause_of(error, host, log))
    if outcome.root_cause:
        cause = outcome.root_cause
        log.event("root_cause", host=cause.host, role=cause.process, pid=cause.pid, message=cause.message)
        log.say(f"root cause: {cause.one_line()}")
        for line in cause.log_tail:
            log.say(f"  | {line}")
        leave(plan.paths, cause)
    log.event("outcome", status=outcome.status)
    return outcome.exit_code


def _log_topology(topology: Topology, service: DataService, log: HostLog) -> None:
    def servers(host: Host) -> list[str]:
        kinds = Counter(each.kind for each in service.servers(host))
        return [kind if count == 1 else f"{count} {kind}s" for kind, count in kinds.items()]

    log.event(
        "topology",
        host=topology.current.name,
        group=topology.current.group,
        role=topology.current.role,
        leader=topology.leader.name,
        dispatcher=topology.dispatcher_host.name,
        hosts=len(topology.hosts),
        tf_data_mode=service.mode,
    )
    if topology.is_leader:
        for line in topology.table(servers).splitlines():
            log.say(line)


def entry_point(entry: str) -> None:
    """Run the launcher, then end this process with its exit code. launcher.py calls this."""
    print_every_character("utf-8")
    code = main(sys.argv[1:], dict(os.environ), entry)
    sys.stdout.flush()
    # Threads of the control channel must not keep an ended host alive.
    os._exit(code)
