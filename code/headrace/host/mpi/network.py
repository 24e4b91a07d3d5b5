"""Environment variables that describe the network to NCCL, gloo, libfabric and gRPC."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.cluster.topology import Topology
from headrace.host.mpi.mpirun import shared_interface

# Instance types with an Elastic Fabric Adapter, and those of them whose adapter can read another host's memory (RDMA).
# Source: sagemaker-training 5.1.4, SM_EFA_NCCL_INSTANCES and SM_EFA_RDMA_INSTANCES.
_RDMA = frozenset(
    f"ml.{name}" for name in ("p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge", "p5e.48xlarge", "p6e-gb200.36xlarge")
)
_EFA = _RDMA | {"ml.g4dn.8xlarge", "ml.g4dn.12xlarge", "ml.g5.48xlarge", "ml.p3dn.24xlarge"}


def network_environ(topology: Topology, environ: Mapping[str, str]) -> dict[str, str]:
    """Return network variables for the ranks, as the toolkit sets them for MPI; those already set are left out."""
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
    """Return variables by which gRPC, also TensorFlow's, reaches the job's hosts directly and not through a proxy.

    Args:
        hosts: the hosts' names and addresses.
    """
    if not any(environ.get(name) for name in ("grpc_proxy", "https_proxy", "http_proxy")):
        return {}
    direct = environ.get("no_grpc_proxy") or environ.get("no_proxy") or ""
    return {"no_grpc_proxy": ",".join(filter(None, [direct, *hosts, "localhost", "127.0.0.1"]))}
