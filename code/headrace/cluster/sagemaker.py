"""Read the topology from a host's `resourceconfig.json`, or from the `SM_*` variables if there is no such file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.cluster.run_files import HostPaths
from headrace.cluster.topology import DATA_GROUP, DNN_GROUP, HOMOGENEOUS_GROUP, Host, Topology, natural_key
from headrace.errors import InputError

FRAMEWORK_PARAMETERS = "SM_FRAMEWORK_PARAMS"
"""Environment variable with the `sagemaker_…` hyperparameters of SageMaker's toolkit, as JSON."""


def read_topology(base_dir: Path, environ: Mapping[str, str]) -> Topology:
    """Return the topology from `base_dir`'s resourceconfig.json, else from the `SM_*` variables.

    SageMaker does not promise an order in the file, so hosts are put in natural order. If the SageMaker toolkit starts
    MPI, the dnn hosts keep the file's order, because the toolkit gives rank 0 to the first of them (sagemaker-training
    5.1, `Environment.get_master_hostname`).

    Raises:
        InputError: neither the file nor the variables exist, or their content contradicts itself.
    """
    path = HostPaths(base_dir).resource_config
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return _from_environment(environ, path)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"Cannot read {path}: {error}") from error
    return topology_from(_json(text, str(path)), str(path), toolkit_starts_mpi(environ))


def toolkit_starts_mpi(environ: Mapping[str, str]) -> bool:
    """Return whether the SageMaker toolkit starts MPI, as read from the toolkit's parameters. Every host has them."""
    parameters = _json(environ.get(FRAMEWORK_PARAMETERS) or "{}", FRAMEWORK_PARAMETERS)
    return isinstance(parameters, dict) and bool(parameters.get("sagemaker_mpi_enabled"))


def topology_from(config: Any, source: str, dnn_as_listed: bool = False) -> Topology:
    """Return the topology in a parsed resourceconfig.json. `source` is where `config` came from, for error messages."""
    try:
        current, interface = config["current_host"], str(config.get("network_interface_name") or "eth0")
        groups = _groups(config)
        hosts = [
            Host(name, group, instance_type, "data" if group == DATA_GROUP and len(groups) > 1 else "dnn")
            for group, (instance_type, members) in groups.items()
            for name in members
        ]
        listed = [host for host in hosts if host.role == "dnn"]
        hosts.sort(key=lambda host: natural_key(host.name))
    except (LookupError, TypeError, AttributeError) as error:
        raise InputError(f"{source} does not say which hosts and groups the job has: {error!r}") from error
    if unknown := [group for group in groups if len(groups) > 1 and group not in (DATA_GROUP, DNN_GROUP)]:
        raise InputError(
            f"{source}: unknown instance group {unknown[0]!r}; a heterogeneous job has the groups "
            f"{DATA_GROUP!r} and {DNN_GROUP!r}"
        )
    if not listed or list(groups) == [DATA_GROUP]:
        raise InputError(f"{source}: no host in instance group {DNN_GROUP!r}; add one, because only its hosts train")
    if dnn_as_listed:
        hosts = [host for host in hosts if host.role == "data"] + listed
    here = next((host for host in hosts if host.name == current), None)
    if here is None:
        raise InputError(f"{source}: current_host {current!r} is not among the hosts {[each.name for each in hosts]}")
    return Topology(tuple(hosts), here, interface, source)


def _from_environment(environ: Mapping[str, str], path: Path) -> Topology:
    if "SM_HOSTS" not in environ:
        raise InputError(
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
        config["instance_groups"] = list(dict(groups).values())
    return topology_from(config, "the SM_* variables", toolkit_starts_mpi(environ))


def _json(text: str, source: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{source} is not valid JSON: {error}") from error


def _groups(config: Mapping[str, Any]) -> dict[str, tuple[str, Sequence[str]]]:
    """Return each group's instance type and host names, by the group's name."""
    if listed := config.get("instance_groups"):
        return {each["instance_group_name"]: (each.get("instance_type") or "", each["hosts"]) for each in listed}
    group = config.get("current_group_name") or HOMOGENEOUS_GROUP
    return {group: (config.get("current_instance_type") or "", config["hosts"])}
