"""What NCCL, gloo, libfabric and gRPC are told about the network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.cluster.topology import Topology
from headrace.host.mpi.mpirun import shared_interface

# Instance types whose network is an Elastic Fabric Adapter, and those whose adapter reads another host's memory itself:
# sagemaker-training 5.1.4, SM_EFA_NCCL_INSTANCES and SM_EFA_RDMA_INSTANCES.
_RDMA = frozenset(
    f"ml.{name}" for name in ("p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge", "p5e.48xlarge", "p6e-gb200.36xlarge")
)
_EFA = _RDMA | {"ml.g4dn.8xlarge", "ml.g4dn.12xlarge", "ml.g5.48xlarge", "ml.p3dn.24xlarge"}


def network_environ(topology: Topology, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables for the ranks, as the toolkit sets them where it starts MPI; what the environment has already stays."""
    instance_type, interface = topology.current.instance_type, shared_interface(topology)
    wanted = {"NCCL_DEBUG": "WARN"} | (
        {"NCCL_SOCKET_IFNAME": interface, "GLOO_SOCKET_IFNAME": interface} if interface else {}
    )
    if instance_type in _EFA:
        # Messages may arrive in another order over EFA, which NCCL's other protocols do not bear.
        wanted |= {"FI_PROVIDER": "efa", "NCCL_PROTO": "simple"}
    if instance_type in _RDMA:
        wanted["FI_EFA_USE_DEVICE_RDMA"] = "1"
    return {name: value for name, value in wanted.items() if name not in environ}


def without_proxy(hosts: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Have gRPC, TensorFlow's too, reach the job's hosts directly: it would ask a proxy of the environment for them.

    Args:
        hosts: their names and addresses.
    """
    if not any(environ.get(name) for name in ("grpc_proxy", "https_proxy", "http_proxy")):
        return {}
    direct = environ.get("no_grpc_proxy") or environ.get("no_proxy") or ""
    return {"no_grpc_proxy": ",".join(filter(None, [direct, *hosts, "localhost", "127.0.0.1"]))}
