"""Read the topology from a host's `resourceconfig.json`, or from the `SM_*` variables if there is no such file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.cluster.paths import HostPaths
from headrace.cluster.topology import DATA_GROUP, DNN_GROUP, HOMOGENEOUS_GROUP, Host, Topology, natural_key
from headrace.errors import TopologyError

FRAMEWORK_PARAMETERS = "SM_FRAMEWORK_PARAMS"
"""The toolkit's own hyperparameters, `sagemaker_…`, as JSON."""


def read_topology(base_dir: Path, environ: Mapping[str, str]) -> Topology:
    """Return the topology from `base_dir`'s resourceconfig.json, else from the `SM_*` variables.

    SageMaker does not promise an order in the file, so hosts are put in natural order. If the SageMaker toolkit starts
    MPI, it gives rank 0 to the first dnn host listed (sagemaker-training 5.1, `Environment.get_master_hostname`). Then
    the dnn hosts stay in the file's order.

    Raises:
        TopologyError: neither exists, or the content contradicts itself.
    """
    path = HostPaths(base_dir).resource_config
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return _from_environment(environ, path)
    except (OSError, UnicodeDecodeError) as error:
        raise TopologyError(f"Cannot read {path}: {error}") from error
    return topology_from(_json(text, str(path)), str(path), toolkit_starts_mpi(environ))


def toolkit_starts_mpi(environ: Mapping[str, str]) -> bool:
    """Return whether the SageMaker toolkit starts MPI, from its parameters, which every host gets."""
    parameters = _json(environ.get(FRAMEWORK_PARAMETERS) or "{}", FRAMEWORK_PARAMETERS)
    ways = ("sagemaker_mpi_enabled", "sagemaker_distributed_dataparallel_enabled")
    return isinstance(parameters, dict) and any(parameters.get(way) for way in ways)


def topology_from(config: Any, source: str, dnn_as_listed: bool = False) -> Topology:
    """Return the topology in the content of a resourceconfig.json; `source` names it in errors."""
    if not isinstance(config, dict):
        raise TopologyError(f"{source}: expected a JSON object, found {type(config).__name__}")
    names = _names(config.get("hosts"), "hosts", source)
    current = config.get("current_host")
    if not isinstance(current, str) or not current:
        raise TopologyError(f"{source}: current_host is {current!r}; expected a host name")
    if current not in names:
        raise TopologyError(f"{source}: current_host {current!r} is not among the hosts {names}")
    groups = _groups(config, names, source)
    hosts = [
        Host(name, group, instance_type, _role(group, groups))
        for group, (instance_type, members) in groups.items()
        for name in members
    ]
    listed = [host for host in hosts if host.role == "dnn"]
    hosts.sort(key=lambda host: natural_key(host.name))
    if dnn_as_listed:
        hosts = [host for host in hosts if host.role == "data"] + listed
    _check_membership(config, names, hosts, current, source)
    interface = config.get("network_interface_name", "eth0")
    if not isinstance(interface, str) or not interface:
        raise TopologyError(f"{source}: network_interface_name is {interface!r}; expected a name such as eth0")
    return Topology(tuple(hosts), next(host for host in hosts if host.name == current), interface, source)


def _from_environment(environ: Mapping[str, str], path: Path) -> Topology:
    if "SM_HOSTS" not in environ:
        raise TopologyError(
            f"No {path} and no SM_HOSTS variable: this is not a SageMaker host. To run a job on this "
            "machine use start_job.py --no-is_cloud_job; for another base folder set SAGEMAKER_BASE_DIR"
        )
    config: dict[str, Any] = {
        "hosts": _json(environ["SM_HOSTS"], "SM_HOSTS"),
        "current_host": environ.get("SM_CURRENT_HOST") or environ.get("CURRENT_HOST"),
        "current_instance_type": environ.get("SM_CURRENT_INSTANCE_TYPE", ""),
        "network_interface_name": environ.get("SM_NETWORK_INTERFACE_NAME") or "eth0",
    }
    if environ.get("SM_CURRENT_INSTANCE_GROUP"):
        config["current_group_name"] = environ["SM_CURRENT_INSTANCE_GROUP"]
    if environ.get("SM_INSTANCE_GROUPS_DICT"):
        groups = _json(environ["SM_INSTANCE_GROUPS_DICT"], "SM_INSTANCE_GROUPS_DICT")
        if not isinstance(groups, dict):
            raise TopologyError("SM_INSTANCE_GROUPS_DICT: expected a JSON object of groups by name")
        config["instance_groups"] = list(groups.values())
    return topology_from(config, "the SM_* variables", toolkit_starts_mpi(environ))


def _json(text: str, source: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise TopologyError(f"{source} is not valid JSON: {error}") from error


def _names(value: Any, what: str, source: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise TopologyError(f"{source}: {what} is {value!r}; expected a list of host names")
    if not value:
        raise TopologyError(f"{source}: {what} is empty; a job has at least one host")
    if len(set(value)) < len(value):
        raise TopologyError(f"{source}: {what} names a host twice: {value}")
    return value


def _groups(config: dict[str, Any], names: list[str], source: str) -> dict[str, tuple[str, Sequence[str]]]:
    """Return instance type and host names by group name."""
    listed = config.get("instance_groups")
    if not listed:
        group = config.get("current_group_name") or HOMOGENEOUS_GROUP
        return {group: (str(config.get("current_instance_type") or ""), names)}
    if not isinstance(listed, list) or not all(isinstance(group, dict) for group in listed):
        raise TopologyError(f"{source}: instance_groups is {listed!r}; expected a list of objects")
    groups: dict[str, tuple[str, Sequence[str]]] = {}
    for group in listed:
        name = group.get("instance_group_name")
        if not isinstance(name, str) or not name:
            raise TopologyError(f"{source}: an instance group has no instance_group_name: {group}")
        if name in groups:
            raise TopologyError(f"{source}: instance group {name!r} is listed twice")
        members = _names(group.get("hosts"), f"hosts of instance group {name!r}", source)
        groups[name] = (str(group.get("instance_type") or ""), members)
    return groups


def _role(group: str, groups: Mapping[str, object]) -> str:
    return "data" if group == DATA_GROUP and len(groups) > 1 else "dnn"


def _check_membership(
    config: dict[str, Any], names: list[str], hosts: Sequence[Host], current: str, source: str
) -> None:
    groups = dict.fromkeys(host.group for host in hosts)
    if len(groups) > 1:
        unknown = [group for group in groups if group not in (DATA_GROUP, DNN_GROUP)]
        if unknown:
            raise TopologyError(
                f"{source}: unknown instance group {unknown[0]!r}; a heterogeneous job has the groups "
                f"{DATA_GROUP!r} and {DNN_GROUP!r}"
            )
    elif DATA_GROUP in groups:
        raise TopologyError(f"{source}: no instance group {DNN_GROUP!r}; without it no host trains")
    grouped = [host.name for host in hosts]
    if len(set(grouped)) < len(grouped):
        twice = next(name for name in grouped if grouped.count(name) > 1)
        raise TopologyError(f"{source}: host {twice!r} is in two instance groups")
    if set(grouped) != set(names):
        stray = sorted(set(grouped) ^ set(names), key=natural_key)
        raise TopologyError(f"{source}: hosts {names} and the instance groups' hosts {grouped} differ by {stray}")
    said = config.get("current_group_name")
    actual = next(host.group for host in hosts if host.name == current)
    if said and said != actual:
        raise TopologyError(
            f"{source}: current_group_name is {said!r}, but {current!r} is listed in group {actual!r}"
            + ("" if said in groups else f"; there is no group {said!r}")
        )
